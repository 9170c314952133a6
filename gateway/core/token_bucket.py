"""An allowance that refills steadily and may change while it is in use. Pure: time is an argument.

It is counted in what is left rather than in the time until it is full: an allowance that grows must not make anything
out of nothing, since what one gateway may use more, another one may use less.
"""

from __future__ import annotations

_MINUTE_NS = 60_000_000_000
_DEBT_MINUTES_MAX = 60
"""The longest that it can be in debt. What a request has used is an engine's word, which may be absurd."""


class TokenBucket:
    """So much a minute, and a minute's worth at once. All that several of these give in any time is at most what they
    held at its beginning and what they were allowed since, however allowances move between them."""

    __slots__ = ("_at_ns", "_level", "per_minute")

    def __init__(self, per_minute: int, now_ns: int) -> None:
        self.per_minute = per_minute
        self._level = per_minute * _MINUTE_NS
        """Of a unit, as many parts as a minute has nanoseconds: so refilling it never rounds."""
        self._at_ns = now_ns

    def resize(self, per_minute: int, now_ns: int) -> None:
        """What it holds stays, or as much of it as still fits."""
        self._refill(now_ns)
        self.per_minute = per_minute
        self._level = min(self._level, per_minute * _MINUTE_NS)

    def wait_ns(self, amount: int, now_ns: int, coming_back: int = 0) -> int:
        """0 when it may be taken now; never (-1) where nothing is allowed. Whoever asks for more than a minute's worth
        gets it from a full bucket, and leaves a debt. `coming_back`: tokens that are assumed to be refunded now."""
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
        """Until it is full."""
        self._refill(now_ns)
        missing = self.per_minute * _MINUTE_NS - self._level
        return -(-missing // self.per_minute) if self.per_minute and missing > 0 else 0

    def _refill(self, now_ns: int) -> None:
        if now_ns > self._at_ns:
            full = self.per_minute * _MINUTE_NS
            self._level = min(full, self._level + (now_ns - self._at_ns) * self.per_minute)
            self._at_ns = now_ns
