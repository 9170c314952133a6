"""Token bucket whose rate may change while it is in use. Pure: time is an argument.

The state is the level rather than the time until it is full: when a share of a limit moves between gateways, a larger
rate must not create tokens retroactively.
"""

from __future__ import annotations

_MINUTE_NS = 60_000_000_000
_DEBT_MINUTES_MAX = 60
"""Largest debt, in minutes of the rate. The debt comes from the usage an engine reports, which may be absurd."""


class TokenBucket:
    """A rate per minute, and a capacity of one minute's worth. Several buckets together never give more in any period
    than their levels at its start and the rates granted since, however rates move between them."""

    __slots__ = ("_at_ns", "_level", "per_minute")

    def __init__(self, per_minute: int, now_ns: int) -> None:
        self.per_minute = per_minute
        self._level = per_minute * _MINUTE_NS
        """Level in 1/60,000,000,000 of a unit (one part per nanosecond of a minute), so that refilling never rounds."""
        self._at_ns = now_ns

    def resize(self, per_minute: int, now_ns: int) -> None:
        """Change the rate; the level stays, capped at the new capacity."""
        self._refill(now_ns)
        self.per_minute = per_minute
        self._level = min(self._level, per_minute * _MINUTE_NS)

    def wait_ns(self, amount: int, now_ns: int, coming_back: int = 0) -> int:
        """Time until the amount may be taken; 0: at once, -1: never, because the rate is 0. An amount above the
        capacity needs a full bucket and leaves a debt. `coming_back`: tokens assumed to be refunded at once."""
        self._refill(now_ns)
        if not self.per_minute:
            return -1
        missing = (min(amount, self.per_minute) - coming_back) * _MINUTE_NS - self._level
        return 0 if missing <= 0 else -(-missing // self.per_minute)

    def take(self, amount: int, now_ns: int) -> None:
        self._refill(now_ns)
        debt_max = _DEBT_MINUTES_MAX * max(self.per_minute, 1) * _MINUTE_NS
        self._level = max(self._level - amount * _MINUTE_NS, -debt_max)

    def give_back(self, amount: int, now_ns: int) -> None:
        self._refill(now_ns)
        self._level = min(self._level + amount * _MINUTE_NS, self.per_minute * _MINUTE_NS)

    def remaining(self, now_ns: int) -> int:
        self._refill(now_ns)
        return max(0, self._level // _MINUTE_NS)

    def is_in_debt(self, now_ns: int) -> bool:
        self._refill(now_ns)
        return self._level < 0

    def reset_ns(self, now_ns: int) -> int:
        """Time until the bucket is full."""
        self._refill(now_ns)
        missing = self.per_minute * _MINUTE_NS - self._level
        return -(-missing // self.per_minute) if self.per_minute and missing > 0 else 0

    def _refill(self, now_ns: int) -> None:
        if now_ns > self._at_ns:
            full = self.per_minute * _MINUTE_NS
            self._level = min(full, self._level + (now_ns - self._at_ns) * self.per_minute)
            self._at_ns = now_ns
