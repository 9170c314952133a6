"""Use that one tenant with limits makes of this gateway, and the share of each limit that it may use here. The code
that divides limits supplies the demands of other gateways; the meter itself receives no messages."""

from __future__ import annotations

from typing import Final

from gateway.core.allowance import LimitKind
from gateway.core.features.limits.shares import SlowGrowth, shares_of
from gateway.core.features.limits.token_bucket import TokenBucket
from gateway.core.tenant_config import TenantConfig
from gateway.core.vocabulary import PlaceRule, TenantName, TenantUse

_MINUTE_NS: Final = 60_000_000_000


class Divided:
    """One limit of one tenant: this gateway's share of it, and the demand here."""

    __slots__ = ("_before", "_growth", "_now", "_of", "_shares", "floor", "limit", "share")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.share = limit
        self.floor = limit
        self._now = self._before = 0
        """Demand in this window, and in the one before."""
        self._growth: SlowGrowth | None = None
        self._of: list[int] = []
        self._shares: list[int] = []
        """Shares computed last, from the demands in `_of`."""

    @property
    def asked(self) -> int:
        return max(self._now, self._before)

    def ask_at_least(self, amount: int) -> None:
        self._now = max(self._now, amount)

    def ask(self, amount: int) -> None:
        self._now = max(0, self._now + amount)

    def turn(self) -> None:
        """Begin the next window."""
        self._before, self._now = self._now, 0

    def alone(self) -> None:
        """Take the whole limit: no other gateway shares it."""
        self.share = self.floor = self.limit
        self._growth = None

    def wait(self, floor: int, now_ns: int) -> None:
        """Fall back to the floor while the other gateways' demands are unknown and they do not know this one's."""
        self.share = self.floor = floor
        self._growth = SlowGrowth(floor, now_ns)

    def divide(self, demands: list[int], floors: list[int], at: int, now_ns: int, heard_ns: int) -> None:
        """Follow the newly computed share. `at`: this gateway's rank. `heard_ns`: the other gateways have received
        reports sent before this time."""
        if demands != self._of:
            self._of, self._shares = demands, shares_of(self.limit, demands, floors)
        self.floor = floors[at]
        target = self._shares[at]
        if self._growth is None:
            self._growth = SlowGrowth(target, now_ns)
        self._growth.follow(target, now_ns, heard_ns)
        self.share = max(self.floor, self._growth.share)

    def cap(self, left: int) -> None:
        """Limit the share to what other gateways have left, but not below the floor."""
        self.share = max(self.floor, min(self.share, left))


class TenantMeter:
    """One tenant with limits, counting the requests that arrived at this gateway."""

    __slots__ = (
        "asked_ns",
        "concurrency",
        "config",
        "refused",
        "request_bucket",
        "requests",
        "running",
        "set_aside",
        "tenant",
        "token_bucket",
        "tokens",
        "turned_ns",
    )

    def __init__(self, tenant: TenantName, config: TenantConfig, now_ns: int) -> None:
        self.tenant = tenant
        self.running = 0
        self.set_aside = 0
        """Tokens reserved by running requests; the unused part is refunded when each ends."""
        self.refused = 0
        """Requests refused for lack of a concurrency slot in this window."""
        self.asked_ns = self.turned_ns = now_ns
        self.request_bucket: TokenBucket | None = None
        self.token_bucket: TokenBucket | None = None
        self.follow(config)

    def follow(self, config: TenantConfig) -> None:
        """Apply changed limits; counts of use stay."""
        self.config = config
        self.concurrency = _divided(config.concurrency_max)
        self.requests = _divided(config.requests_per_minute)
        self.tokens = _divided(config.tokens_per_minute)

    def limits(self) -> list[tuple[LimitKind, Divided]]:
        each = (
            (LimitKind.CONCURRENCY, self.concurrency),
            (LimitKind.REQUESTS, self.requests),
            (LimitKind.TOKENS, self.tokens),
        )
        return [(kind, limit) for kind, limit in each if limit is not None]

    @property
    def is_idle(self) -> bool:
        return not self.running and not any(limit.asked for _, limit in self.limits())

    def turn(self, now_ns: int, window_ns: int) -> None:
        """Advance to the window that contains `now_ns`."""
        passed = (now_ns - self.turned_ns) // window_ns
        if passed:
            self.turned_ns += passed * window_ns
            self.refused = 0
            for _, limit in self.limits():
                limit.turn()
                if passed > 1:
                    limit.turn()
            if self.concurrency is not None:
                self.concurrency.ask_at_least(self.running)

    def resize(self, now_ns: int) -> None:
        self.request_bucket = _resized(self.request_bucket, self.requests, now_ns)
        self.token_bucket = _resized(self.token_bucket, self.tokens, now_ns)

    def is_in_debt(self, now_ns: int) -> bool:
        """Return whether it has used more tokens than it has accrued: requests came to more than their reservation."""
        return self.token_bucket is not None and self.token_bucket.is_in_debt(now_ns)

    def use(self, window_ns: int, told_in: PlaceRule | None = None) -> TenantUse:
        per_minute = _MINUTE_NS // window_ns
        return TenantUse(
            self.tenant,
            self.running,
            0 if self.concurrency is None else min(self.concurrency.asked, self.concurrency.limit),
            0 if self.requests is None else min(self.requests.asked * per_minute, self.requests.limit),
            0 if self.tokens is None else min(self.tokens.asked * per_minute, self.tokens.limit),
            told_in,
        )

    @property
    def pressure(self) -> float:
        """Largest share of a limit that is asked for, at most 1."""
        return max([min(1.0, limit.asked / limit.limit) for _, limit in self.limits()], default=0.0)

    def leave(self, now_ns: int, *, was_turned_away: bool = False) -> None:
        """Record the end of a request. One that was refused after all gives its request back; its tokens are settled in
        any case."""
        self.running -= 1
        assert self.running >= 0, f"more requests of {self.tenant} ended than began"
        if was_turned_away and self.request_bucket is not None:
            self.request_bucket.give_back(1, now_ns)


def _divided(limit: int | None) -> Divided | None:
    return None if limit is None else Divided(limit)


def _resized(bucket: TokenBucket | None, limit: Divided | None, now_ns: int) -> TokenBucket | None:
    if limit is None:
        return None
    if bucket is None:
        return TokenBucket(limit.share, now_ns)
    if bucket.per_minute != limit.share:
        bucket.resize(limit.share, now_ns)
    return bucket


def demand_of(use: TenantUse, kind: LimitKind) -> int:
    """Demand that the report states for this kind of limit."""
    if kind is LimitKind.CONCURRENCY:
        return use.demand
    return use.requests_per_minute if kind is LimitKind.REQUESTS else use.tokens_per_minute
