"""Ladders: the pools of a model ordered by length, by which token budgets sort requests. Built from the pools of this
gateway and those that peers report.

A ladder is cached until the fleet changes. A model without a pool that has a threshold has no ladder, and its requests
need no budget.
"""

from __future__ import annotations

from typing import Final

from gateway.core.peers import Peers
from gateway.core.pools import Ladder
from gateway.core.replicas import Replicas
from gateway.core.requests import RequestClass
from gateway.core.vocabulary import Connector, ModelName, Place, PlaceRule, RegionName

_LADDERS_MAX: Final = 256
_Key = tuple[ModelName, PlaceRule, Place | None, frozenset[Connector], bool, bool]


class Ladders:
    """Ladders of one gateway."""

    def __init__(self, region: RegionName, replicas: Replicas, peers: Peers) -> None:
        self._region = region
        self._replicas = replicas
        self._peers = peers
        self._ladders: dict[_Key, Ladder] = {}
        self._versions = (-1, -1)

    def are_wanted(self, model: ModelName) -> bool:
        return model in self._replicas.thresholds or model in self._peers.thresholds

    def context_max(self, model: ModelName) -> int:
        """Longest context of the model, here or at a peer, in tokens; 0 while some pool or peer states none."""
        bounds = [*self._replicas.contexts(model), *self._peers.contexts(model)]
        return max(bounds) if bounds and min(bounds) > 0 else 0

    @property
    def exist(self) -> bool:
        """True if any model has a ladder."""
        return bool(self._replicas.thresholds or self._peers.thresholds)

    @property
    def versions(self) -> tuple[int, int]:
        """Versions that change whenever a ladder may have."""
        return self._replicas.version, self._peers.served_version

    def of(self, wanted: RequestClass, *, overflows: bool) -> Ladder | None:
        """Ladder for requests of this class. `overflows`: such requests may leave the region. None: the model's pools
        are not told apart by budgets."""
        model, rule, origin, connectors = wanted.model, wanted.rule, wanted.origin, wanted.connectors
        if not self.are_wanted(model):
            return None
        may_stay, may_cross = wanted.may_stay_in_region, wanted.may_cross_regions and overflows
        versions = self.versions
        if versions != self._versions or len(self._ladders) >= _LADDERS_MAX:
            self._versions = versions
            self._ladders.clear()
        key = (model, rule, origin, connectors, may_stay, may_cross)
        ladder = self._ladders.get(key)
        if ladder is None:
            ours = self._replicas.bounds(model, rule, origin, connectors)
            others = self._peers.bounds(
                model, rule, connectors, home=self._region, may_stay=may_stay, may_cross=may_cross
            )
            ladder = self._ladders[key] = Ladder(ours, others)
        return ladder
