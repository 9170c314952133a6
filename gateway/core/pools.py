"""Pools that a request fits into, in order of preference: the tokens that it may come to, compared with each pool's
limit and threshold (token-budget pool routing, §2.2).

Pure arithmetic over bounds. It knows no replica and no request; the placer decides which pool has room.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from gateway.core.value import value
from gateway.core.vocabulary import ModelCapacity, ModelName, PoolName

_BOUNDS_MAX: Final = 16
"""Distinct budgets told apart for one model. Those of this gateway's own pools are always kept; peers' only up to this
number."""
_NO_LIMIT: Final = 1 << 62


@value
class PoolBounds:
    """Limit and threshold of one pool."""

    name: PoolName
    context_tokens_max: int
    """Longest request the pool takes; 0: not known."""
    threshold_tokens: int
    """Longest request the pool is meant for; 0: any that fits."""

    @property
    def limit(self) -> int:
        return self.context_tokens_max or _NO_LIMIT


@value
class PoolFit:
    """Pools for all requests whose budgets lie in one range. There are few ranges, and requests of one range share a
    queue."""

    need_tokens: int
    """Upper end of the range: a pool that takes this takes every request of the range."""
    preferred: tuple[PoolName, ...]
    """Pools of this gateway meant for the range; several only where their bounds are equal."""
    alternates: tuple[PoolName, ...]
    """Other pools of this gateway that take the range: longer ones first, the next longer before the longest, then
    shorter ones."""
    takes_unknown: bool
    """True if the range needs no more than the shortest known pool takes, so that a pool with no stated limit will
    do."""

    @property
    def pools(self) -> tuple[PoolName, ...]:
        return self.preferred + self.alternates

    def is_taken_by(self, capacity: ModelCapacity) -> bool:
        if not capacity.context_tokens_max:
            return self.takes_unknown
        return capacity.context_tokens_max >= self.need_tokens

    def preferred_among(self, capacities: Sequence[ModelCapacity]) -> list[ModelCapacity]:
        """Capacities of another gateway that it prefers for requests of this range."""
        bounds = [_bounds_of(each) for each in capacities if self.is_taken_by(each)]
        preferred = _preferred(sorted(bounds, key=_order), self.need_tokens)
        names = {(each.name, each.context_tokens_max) for each in preferred}
        return [each for each in capacities if self.is_taken_by(each) and (each.pool, each.context_tokens_max) in names]


class Ladder:
    """All pools of a model that some requests may go to, at this gateway and at others."""

    __slots__ = ("_bounds", "_fits", "longest_tokens")

    def __init__(self, ours: Iterable[PoolBounds], others: Iterable[PoolBounds] = ()) -> None:
        own, remote = sorted(set(ours), key=_order), sorted(set(others), key=_order)
        self._bounds = _few_bounds(own, remote)
        shortest = min((each.limit for each in (*own, *remote)), default=_NO_LIMIT)
        every = [*self._bounds, (self._bounds[-1] if self._bounds else 0) + 1]
        self._fits = [_fit(own, need, takes_unknown=need <= shortest) for need in every]
        limits = [each.limit for each in own] + [each.context_tokens_max for each in remote]
        self.longest_tokens = max(limits, default=0)
        """Limit of the longest pool. Another gateway's pool with no stated limit does not count."""

    def fit_of(self, tokens: int, firm_tokens: int, slack_share: float) -> PoolFit:
        """Fit of a request that may come to `tokens`, of which `firm_tokens` are no guess at the answer's length. The
        estimate is on the high side, so a request over the longest pool's limit goes there all the same if its firm
        tokens exceed the limit by no more than `slack_share`; the engine counts exactly."""
        if tokens > self.longest_tokens and firm_tokens <= self.longest_tokens * (1 + slack_share):
            tokens = self.longest_tokens
        return self._fits[bisect_left(self._bounds, tokens)]


def bounds_in(capacities: Iterable[ModelCapacity], model: ModelName) -> Iterable[PoolBounds]:
    return (_bounds_of(each) for each in capacities if each.model == model)


def _bounds_of(capacity: ModelCapacity) -> PoolBounds:
    return PoolBounds(capacity.pool, capacity.context_tokens_max, capacity.threshold_tokens)


def _order(bounds: PoolBounds) -> tuple[int, int, PoolName]:
    """Sort key of pools, shortest first."""
    return bounds.limit, bounds.threshold_tokens or _NO_LIMIT, bounds.name


def _few_bounds(own: Sequence[PoolBounds], remote: Sequence[PoolBounds]) -> list[int]:
    kept: dict[int, None] = {}
    for each in (*own, *remote):
        for tokens in (each.threshold_tokens, each.context_tokens_max):
            if tokens and (len(kept) < _BOUNDS_MAX or each in own):
                kept[tokens] = None
    return sorted(kept)


def _fit(own: Sequence[PoolBounds], need_tokens: int, *, takes_unknown: bool) -> PoolFit:
    fitting = [each for each in own if each.limit >= need_tokens]
    preferred = _preferred(fitting, need_tokens)
    if not preferred:
        return PoolFit(need_tokens, (), (), takes_unknown)
    first, last = fitting.index(preferred[0]), fitting.index(preferred[-1])
    names = _names(preferred)
    others = _names([*fitting[last + 1 :], *reversed(fitting[:first])])
    return PoolFit(need_tokens, names, tuple([each for each in others if each not in names]), takes_unknown)


def _names(pools: Iterable[PoolBounds]) -> tuple[PoolName, ...]:
    return tuple(dict.fromkeys([each.name for each in pools]))


def _preferred(fitting: Sequence[PoolBounds], need_tokens: int) -> list[PoolBounds]:
    """Shortest fitting pool meant for this many tokens, or the longest if none is, with all pools that have the same
    bounds."""
    if not fitting:
        return []
    meant = [each for each in fitting if not each.threshold_tokens or each.threshold_tokens >= need_tokens]
    best = meant[0] if meant else fitting[-1]
    alike = best.context_tokens_max, best.threshold_tokens
    return [each for each in fitting if (each.context_tokens_max, each.threshold_tokens) == alike]
