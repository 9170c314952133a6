"""Pools that a request fits into, in order of preference: the tokens that it may come to, compared with each pool's
limit and threshold (token-budget pool routing, §2.2).

Pure arithmetic over bounds. It knows no replica and no request; the placer decides which pool has room.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from gateway.core.value import value
from gateway.core.vocabulary import ModelCapacity, ModelName, PoolName

NO_LIMIT: Final = 1 << 62
"""Tokens that stand for no limit."""


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
        return self.context_tokens_max or NO_LIMIT


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
        preferred = preferred_of(sorted(bounds, key=order_of), self.need_tokens)
        names = {(each.name, each.context_tokens_max) for each in preferred}
        return [each for each in capacities if self.is_taken_by(each) and (each.pool, each.context_tokens_max) in names]


def bounds_in(capacities: Iterable[ModelCapacity], model: ModelName) -> Iterable[PoolBounds]:
    return (_bounds_of(each) for each in capacities if each.model == model)


def _bounds_of(capacity: ModelCapacity) -> PoolBounds:
    return PoolBounds(capacity.pool, capacity.context_tokens_max, capacity.threshold_tokens)


def order_of(bounds: PoolBounds) -> tuple[int, int, PoolName]:
    """Sort key of pools, shortest first."""
    return bounds.limit, bounds.threshold_tokens or NO_LIMIT, bounds.name


def preferred_of(fitting: Sequence[PoolBounds], need_tokens: int) -> list[PoolBounds]:
    """Shortest fitting pool meant for this many tokens, or the longest if none is, with all pools that have the same
    bounds."""
    if not fitting:
        return []
    meant = [each for each in fitting if not each.threshold_tokens or each.threshold_tokens >= need_tokens]
    best = meant[0] if meant else fitting[-1]
    alike = best.context_tokens_max, best.threshold_tokens
    return [each for each in fitting if (each.context_tokens_max, each.threshold_tokens) == alike]
