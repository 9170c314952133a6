"""The ladders of pools that requests are sorted by, made of what is served here and, as far as is heard, elsewhere.

Kept until the fleet changes. Where no pool of a model has a threshold there is none, and nobody's budget is asked.
"""

from __future__ import annotations

from typing import Final

from gateway.core.peers import Peers
from gateway.core.pools import Ladder
from gateway.core.replicas import Replicas
from gateway.core.vocabulary import Connector, ModelName, Place, PlaceRule

_LADDERS_MAX: Final = 256
_Key = tuple[ModelName, PlaceRule, Place | None, frozenset[Connector]]


class Ladders:
    """One gateway's."""

    def __init__(self, replicas: Replicas, peers: Peers) -> None:
        self._replicas = replicas
        self._peers = peers
        self._ladders: dict[_Key, Ladder] = {}
        self._versions = (-1, -1)

    def are_wanted(self, model: ModelName) -> bool:
        return model in self._replicas.thresholds or model in self._peers.thresholds

    @property
    def exist(self) -> bool:
        """For any model."""
        return bool(self._replicas.thresholds or self._peers.thresholds)

    @property
    def versions(self) -> tuple[int, int]:
        """Change whenever a ladder may have."""
        return self._replicas.version, self._peers.served_version

    def of(
        self, model: ModelName, rule: PlaceRule, origin: Place | None, connectors: frozenset[Connector]
    ) -> Ladder | None:
        """For those that may go to the same places. None: pools of this model are not told apart by budgets."""
        if not self.are_wanted(model):
            return None
        versions = self.versions
        if versions != self._versions or len(self._ladders) >= _LADDERS_MAX:
            self._versions = versions
            self._ladders.clear()
        key = (model, rule, origin, connectors)
        ladder = self._ladders.get(key)
        if ladder is None:
            ours = self._replicas.bounds(model, rule, origin, connectors)
            ladder = self._ladders[key] = Ladder(ours, self._peers.bounds(model, rule, connectors))
        return ladder
