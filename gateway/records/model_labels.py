"""Labels of models in metrics. Names that clients or peers choose cannot use up the labels.

A model becomes a label with the first request for it, if a gateway serves it then. It stays one for the life of the
process, since its series do. The number of labels is bounded, and models of peers take at most half of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from gateway.core.vocabulary import GatewayId, ModelCapacity, ModelName

OTHER = "other"
MODELS_MAX = 256
PEERS_MODELS_MAX = MODELS_MAX // 2
"""Maximum of labels for models that only peers served when they were first requested."""


class _Said(NamedTuple):
    capacities: tuple[ModelCapacity, ...]
    models: frozenset[ModelName]


class ModelLabels:
    """Labels of models, given with the first request for each."""

    def __init__(self) -> None:
        self._labels: set[ModelName] = set()
        self._for_peers = 0
        self._ours: frozenset[ModelName] = frozenset()
        self._theirs: dict[GatewayId, _Said] = {}

    def assign(self, models: Iterable[ModelName], peers: Collection[GatewayId]) -> None:
        """Set the models that this gateway's replicas serve, and drop what former peers reported."""
        self._ours = frozenset(models)
        self._theirs = {peer: said for peer, said in self._theirs.items() if peer in peers}

    def hear(self, peer: GatewayId, capacities: tuple[ModelCapacity, ...]) -> None:
        """Take the models that a peer reports to serve, in place of its earlier report."""
        last = self._theirs.get(peer)
        if last is None or last.capacities != capacities:
            self._theirs[peer] = _Said(capacities, frozenset(capacity.model for capacity in capacities))

    def of(self, model: ModelName) -> str:
        if model not in self._labels and not self._take(model):
            return OTHER
        return model

    def known(self) -> Iterable[str]:
        """Models that have series already, sorted."""
        return sorted(self._labels)

    def _take(self, model: ModelName) -> bool:
        """Make a model a label if it may become one. False if it may not."""
        if len(self._labels) >= MODELS_MAX:
            return False
        if model not in self._ours:
            if self._for_peers >= PEERS_MODELS_MAX or not self._is_theirs(model):
                return False
            self._for_peers += 1
        self._labels.add(model)
        return True

    def _is_theirs(self, model: ModelName) -> bool:
        return any(model in said.models for said in self._theirs.values())
