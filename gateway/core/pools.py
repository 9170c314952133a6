"""Which pools a request fits into, and in which order: by the tokens that it may come to, against what each pool takes
and what it is meant for (token-budget pool routing, §2.2).

Pure arithmetic over bounds. It knows no replica and no request, and never says who is free: that is for the placer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from gateway.core.value import value
from gateway.core.vocabulary import ModelCapacity, ModelName, PoolName

_BOUNDS_MAX: Final = 16
"""Different budgets that are told apart for one model. Our own pools' come first: others may say what they like."""
_NO_LIMIT: Final = 1 << 62


@value
class PoolBounds:
    """What one pool takes, and what it is meant for."""

    name: PoolName
    context_tokens_max: int
    """0: no limit is known."""
    threshold_tokens: int
    """0: whatever fits."""

    @property
    def limit(self) -> int:
        return self.context_tokens_max or _NO_LIMIT


@value
class PoolFit:
    """Where requests of one stretch of budgets go: few of these exist, and all of a stretch share a queue."""

    need_tokens: int
    """The stretch's upper end: whatever takes that takes them all."""
    preferred: tuple[PoolName, ...]
    """Of ours, those that are meant for it; several only where nothing tells them apart."""
    alternates: tuple[PoolName, ...]
    """Of ours, the others that take it: longer ones, the next longer first, and then shorter ones."""
    takes_unknown: bool
    """It needs no more than the shortest pool that is known has: whoever does not say what it takes will do."""

    @property
    def pools(self) -> tuple[PoolName, ...]:
        return self.preferred + self.alternates

    def is_taken_by(self, capacity: ModelCapacity) -> bool:
        if not capacity.context_tokens_max:
            return self.takes_unknown
        return capacity.context_tokens_max >= self.need_tokens

    def preferred_among(self, capacities: Sequence[ModelCapacity]) -> list[ModelCapacity]:
        """Of what another gateway has for a model, that which it will take for this one."""
        bounds = [_bounds_of(each) for each in capacities if self.is_taken_by(each)]
        preferred = _preferred(sorted(bounds, key=_order), self.need_tokens)
        names = {(each.name, each.context_tokens_max) for each in preferred}
        return [each for each in capacities if self.is_taken_by(each) and (each.pool, each.context_tokens_max) in names]


class Ladder:
    """All pools of a model that some requests may go to, ours and those of other gateways."""

    __slots__ = ("_bounds", "_fits", "longest_tokens")

    def __init__(self, ours: Iterable[PoolBounds], others: Iterable[PoolBounds] = ()) -> None:
        own, remote = sorted(set(ours), key=_order), sorted(set(others), key=_order)
        self._bounds = _few_bounds(own, remote)
        shortest = min((each.limit for each in (*own, *remote)), default=_NO_LIMIT)
        every = [*self._bounds, (self._bounds[-1] if self._bounds else 0) + 1]
        self._fits = [_fit(own, need, takes_unknown=need <= shortest) for need in every]
        limits = [each.limit for each in own] + [each.context_tokens_max for each in remote]
        self.longest_tokens = max(limits, default=0)
        """What the longest takes. Another gateway that does not say what it takes does not count."""

    def fit_of(self, tokens: int, firm_tokens: int, slack_share: float) -> PoolFit:
        """For a request that may come to so many tokens, of which so many are no guess at the answer's length. It is an
        estimate, and on the high side: what is over the longest by no more than a share of that goes there all the
        same, where its engine will count."""
        if tokens > self.longest_tokens and firm_tokens <= self.longest_tokens * (1 + slack_share):
            tokens = self.longest_tokens
        return self._fits[bisect_left(self._bounds, tokens)]


def bounds_in(capacities: Iterable[ModelCapacity], model: ModelName) -> Iterable[PoolBounds]:
    return (_bounds_of(each) for each in capacities if each.model == model)


def _bounds_of(capacity: ModelCapacity) -> PoolBounds:
    return PoolBounds(capacity.pool, capacity.context_tokens_max, capacity.threshold_tokens)


def _order(bounds: PoolBounds) -> tuple[int, int, PoolName]:
    """The shortest first."""
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
    """The first that is meant for so many; where none is, the longest. With it, those that are just like it."""
    if not fitting:
        return []
    meant = [each for each in fitting if not each.threshold_tokens or each.threshold_tokens >= need_tokens]
    best = meant[0] if meant else fitting[-1]
    alike = best.context_tokens_max, best.threshold_tokens
    return [each for each in fitting if (each.context_tokens_max, each.threshold_tokens) == alike]
