"""Counts the usage of each key: running requests, and requests and tokens per minute. Pure: time is an argument.

It never waits; a key that has used up its share is told when to retry.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter

from gateway.core.allowance import TRY_AGAIN_NS, LimitAllowance, LimitKind
from gateway.request.callers import ClientKey, KeyId, KeyLimits

_MILLISECOND_NS = 1_000_000
_MINUTE_NS = 60_000_000_000
_DEBT_MAX_NS = 60 * _MINUTE_NS
"""Longest debt of a bucket. The number of tokens used is reported by an engine, and may be absurd."""
METERS_MAX = 40_000
"""Twice the keys that a keys file may hold, so that a key in use is not forgotten while files change, and as many token
holders as are told apart in a day."""

_remaining = attrgetter("remaining")
_HEADERS = {
    kind: (f"x-ratelimit-limit-{kind}", f"x-ratelimit-remaining-{kind}", f"x-ratelimit-reset-{kind}")
    for kind in LimitKind
}


class Limit(StrEnum):
    CONCURRENCY = "concurrency"
    REQUESTS = "requests"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class Exceeded:
    limit: Limit
    wait_ns: int
    """Nanoseconds until the request could pass at the earliest, if there are no other requests meanwhile and all
    reservations of running requests are refunded; 0 where only the end of a running request can help."""


class Bucket:
    """A minute's allowance that refills steadily.

    It is stored as the time at which it will be full again (the generic cell rate algorithm, ITU-T I.371), so that no
    refilling is needed. More than it holds may be taken, as a debt that is paid off first, within an hour at most.
    """

    __slots__ = ("_full_at_ns", "per_minute")

    def __init__(self, per_minute: int) -> None:
        assert per_minute > 0, "an allowance of nothing is a key that is disabled"
        self.per_minute = per_minute
        self._full_at_ns = 0

    def wait_ns(self, amount: int, now_ns: int, coming_back: int = 0) -> int:
        """Nanoseconds until `amount` may be taken; 0 if it may be taken at once. More than a whole minute's allowance
        may be taken from a full bucket. `coming_back`: tokens that are assumed to be refunded now."""
        reset_ns = self._full_at_ns - self._refill_ns(coming_back) - now_ns
        if reset_ns <= 0:
            return 0
        return max(0, reset_ns + self._refill_ns(min(amount, self.per_minute)) - _MINUTE_NS)

    def take(self, amount: int, now_ns: int) -> None:
        full_at_ns = max(self._full_at_ns, now_ns) + self._refill_ns(amount)
        self._full_at_ns = min(full_at_ns, now_ns + _MINUTE_NS + _DEBT_MAX_NS)

    def give_back(self, amount: int) -> None:
        self._full_at_ns -= self._refill_ns(amount)

    def remaining(self, now_ns: int) -> int:
        return max(0, (_MINUTE_NS - self.reset_ns(now_ns)) * self.per_minute // _MINUTE_NS)

    def reset_ns(self, now_ns: int) -> int:
        """Nanoseconds until the bucket is full again."""
        return max(0, self._full_at_ns - now_ns)

    def allowance(self, kind: LimitKind, now_ns: int) -> LimitAllowance:
        """Remainder of the allowance."""
        return LimitAllowance(kind, self.per_minute, self.remaining(now_ns), self.reset_ns(now_ns))

    def _refill_ns(self, amount: int) -> int:
        return amount * _MINUTE_NS // self.per_minute


class KeyMeter:
    """Current and recent usage of one key."""

    __slots__ = ("limits", "requests", "running", "set_aside", "tokens")

    def __init__(self) -> None:
        self.running = 0
        self.set_aside = 0
        """Tokens reserved by running requests; the unused part is refunded when each ends."""
        self.limits = KeyLimits()
        self.requests: Bucket | None = None
        self.tokens: Bucket | None = None

    def follow(self, limits: KeyLimits) -> None:
        """Apply changed limits while the key is in use; what has been used stays used."""
        if limits != self.limits:
            self.limits = limits
            self.requests = _resized(self.requests, limits.requests_per_minute)
            self.tokens = _resized(self.tokens, limits.tokens_per_minute)

    def enter(self, now_ns: int) -> Exceeded | None:
        """Take a place and one request, or neither. A key in debt for tokens is refused here already, before its body
        is read."""
        exceeded = self._obstacle(now_ns)
        if exceeded is None:
            self.running += 1
            if self.requests is not None:
                self.requests.take(1, now_ns)
        return exceeded

    def leave(self) -> None:
        self.running -= 1
        assert self.running >= 0, "left more often than entered"

    def take_tokens(self, amount: int, now_ns: int) -> Exceeded | None:
        if self.tokens is not None:
            wait_ns = self._tokens_wait_ns(self.tokens, amount, now_ns)
            if wait_ns:
                return Exceeded(Limit.TOKENS, wait_ns)
            self.tokens.take(amount, now_ns)
        self.set_aside += amount
        return None

    def settle_tokens(self, taken: int, used: int, now_ns: int) -> None:
        """Replace the reservation by the tokens used."""
        self.set_aside -= taken
        if self.tokens is None:
            return
        if used > taken:
            self.tokens.take(used - taken, now_ns)
        else:
            self.tokens.give_back(taken - used)

    def _obstacle(self, now_ns: int) -> Exceeded | None:
        if self.limits.concurrency_max is not None and self.running >= self.limits.concurrency_max:
            return Exceeded(Limit.CONCURRENCY, 0)
        wait_ns = 0 if self.requests is None else self.requests.wait_ns(1, now_ns)
        if wait_ns:
            return Exceeded(Limit.REQUESTS, wait_ns)
        wait_ns = 0 if self.tokens is None else self._tokens_wait_ns(self.tokens, 1, now_ns)
        return Exceeded(Limit.TOKENS, wait_ns) if wait_ns else None

    def _tokens_wait_ns(self, bucket: Bucket, amount: int, now_ns: int) -> int:
        """Nanoseconds until so many tokens could be taken at the earliest, since reservations of running requests may
        be refunded at any time."""
        wait_ns = bucket.wait_ns(amount, now_ns)
        return min(wait_ns, max(TRY_AGAIN_NS, bucket.wait_ns(amount, now_ns, self.set_aside))) if wait_ns else 0


class Meters:
    """Meters of all keys, in a map of limited size."""

    def __init__(self, meters_max: int = METERS_MAX) -> None:
        self._meters_max = meters_max
        self._meters: dict[KeyId, KeyMeter] = {}

    def __len__(self) -> int:
        return len(self._meters)

    def of(self, key: ClientKey) -> KeyMeter:
        meter = self._meters.pop(key.key_id, None) or KeyMeter()
        self._meters[key.key_id] = meter
        meter.follow(key.limits)
        if len(self._meters) > self._meters_max:
            self._forget_one()
        return meter

    def _forget_one(self) -> None:
        """Forget the meter that was looked up longest ago and has no running request."""
        idle = next((key_id for key_id, meter in self._meters.items() if meter.running == 0), None)
        if idle is not None:
            del self._meters[idle]


def rate_headers(meter: KeyMeter | None, now_ns: int, of_tenant: Iterable[LimitAllowance] = ()) -> dict[str, str]:
    """Rate-limit headers in the form of OpenAI's API. A limit that is not set is not mentioned. Where both key and
    tenant have one, the headers are about the one with less left."""
    allowances = list(of_tenant)
    if meter is not None:
        if meter.requests is not None:
            allowances.append(meter.requests.allowance(LimitKind.REQUESTS, now_ns))
        if meter.tokens is not None:
            allowances.append(meter.tokens.allowance(LimitKind.TOKENS, now_ns))
    if len(allowances) > 1:
        allowances.sort(key=_remaining, reverse=True)  # the last one of a kind counts
    headers: dict[str, str] = {}
    for allowance in allowances:
        limit, remaining, reset = _HEADERS[allowance.kind]
        headers[limit] = str(allowance.limit)
        headers[remaining] = str(allowance.remaining)
        headers[reset] = format_reset(allowance.reset_ns)
    return headers


def format_reset(duration_ns: int) -> str:
    """Duration such as `12ms`, `1.5s` or `6m0s`, rounded up."""
    milliseconds = -(-duration_ns // _MILLISECOND_NS)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    seconds = f"{rest / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def _resized(bucket: Bucket | None, per_minute: int | None) -> Bucket | None:
    if per_minute is None:
        return None
    if bucket is None:
        return Bucket(per_minute)
    bucket.per_minute = per_minute
    return bucket
