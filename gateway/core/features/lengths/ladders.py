"""Ladders: the pools of a model ordered by length, by which token budgets sort requests. Built from the pools of this
gateway and those that peers report.

A ladder is cached until the fleet changes. A model without a pool that has a threshold has no ladder, and its requests
need no budget.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from gateway.core.kernel.peers import Peers
from gateway.core.kernel.pools import NO_LIMIT, PoolBounds, PoolFit, order_of, preferred_of
from gateway.core.kernel.replicas import Replicas
from gateway.core.kernel.request_class import RequestClass
from gateway.core.vocabulary import Connector, ModelName, Place, PlaceRule, PoolName, RegionName

_BOUNDS_MAX: Final = 16
"""Distinct budgets told apart for one model. Those of this gateway's own pools are always kept; peers' only up to this
number."""
_LADDERS_MAX: Final = 256
_Key = tuple[ModelName, PlaceRule, Place | None, frozenset[Connector], bool, bool]


class Ladder:
    """All pools of a model that some requests may go to, at this gateway and at others."""

    __slots__ = ("_bounds", "_fits", "longest_tokens")

    def __init__(self, ours: Iterable[PoolBounds], others: Iterable[PoolBounds] = ()) -> None:
        own, remote = sorted(set(ours), key=order_of), sorted(set(others), key=order_of)
        self._bounds = _few_bounds(own, remote)
        shortest = min((each.limit for each in (*own, *remote)), default=NO_LIMIT)
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


class Ladders:
    """Ladders of one gateway."""

    def __init__(self, region: RegionName, replicas: Replicas, peers: Peers) -> None:
        self._region = region
        self._replicas = replicas
        self._peers = peers
        self._ladders: dict[_Key, Ladder] = {}
        self._versions = (-1, -1)

    @property
    def exist(self) -> bool:
        """True if any model has a ladder."""
        return bool(self._replicas.groups.thresholds or self._peers.thresholds)

    @property
    def versions(self) -> tuple[int, int]:
        """Versions that change whenever a ladder may have."""
        return self._replicas.version, self._peers.served_version

    def of(self, wanted: RequestClass, *, overflows: bool) -> Ladder | None:
        """Ladder for requests of this class. `overflows`: such requests may leave the region. None: the model's pools
        are not told apart by budgets."""
        model, rule, origin, connectors = wanted.model, wanted.rule, wanted.origin, wanted.connectors
        if model not in self._replicas.groups.thresholds and model not in self._peers.thresholds:
            return None
        may_stay, may_cross = wanted.may_stay_in_region, wanted.may_cross_regions and overflows
        versions = self.versions
        if versions != self._versions or len(self._ladders) >= _LADDERS_MAX:
            self._versions = versions
            self._ladders.clear()
        key = (model, rule, origin, connectors, may_stay, may_cross)
        ladder = self._ladders.get(key)
        if ladder is None:
            ours = self._replicas.groups.bounds(model, rule, origin, connectors)
            others = self._peers.bounds(
                model, rule, connectors, home=self._region, may_stay=may_stay, may_cross=may_cross
            )
            ladder = self._ladders[key] = Ladder(ours, others)
        return ladder


def _few_bounds(own: Sequence[PoolBounds], remote: Sequence[PoolBounds]) -> list[int]:
    kept: dict[int, None] = {}
    for each in (*own, *remote):
        for tokens in (each.threshold_tokens, each.context_tokens_max):
            if tokens and (len(kept) < _BOUNDS_MAX or each in own):
                kept[tokens] = None
    return sorted(kept)


def _fit(own: Sequence[PoolBounds], need_tokens: int, *, takes_unknown: bool) -> PoolFit:
    fitting = [each for each in own if each.limit >= need_tokens]
    preferred = preferred_of(fitting, need_tokens)
    if not preferred:
        return PoolFit(need_tokens, (), (), takes_unknown)
    first, last = fitting.index(preferred[0]), fitting.index(preferred[-1])
    names = _names(preferred)
    others = _names([*fitting[last + 1 :], *reversed(fitting[:first])])
    return PoolFit(need_tokens, names, tuple([each for each in others if each not in names]), takes_unknown)


def _names(pools: Iterable[PoolBounds]) -> tuple[PoolName, ...]:
    return tuple(dict.fromkeys([each.name for each in pools]))
