"""Which models get series of their own. Names that others choose, in requests or in heartbeats, cannot use them up.

A name becomes a label with the first request for it, if somebody serves it then; it stays one for as long as the
process lives, since its series do. So their number is bounded, and peers' models never get more than half of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from gateway.core.vocabulary import GatewayId, ModelCapacity, ModelName

OTHER = "other"
MODELS_MAX = 256
PEERS_MODELS_MAX = MODELS_MAX // 2
"""Models that only peers served when they were first asked for."""


class _Said(NamedTuple):
    capacities: tuple[ModelCapacity, ...]
    models: frozenset[ModelName]


class ModelLabels:
    """The label of each model."""

    def __init__(self) -> None:
        self._labels: set[ModelName] = set()
        self._for_peers = 0
        self._ours: frozenset[ModelName] = frozenset()
        self._theirs: dict[GatewayId, _Said] = {}

    def assign(self, models: Iterable[ModelName], peers: Collection[GatewayId]) -> None:
        """What our replicas serve from now on, and the peers that are still ours."""
        self._ours = frozenset(models)
        self._theirs = {peer: said for peer, said in self._theirs.items() if peer in peers}

    def hear(self, peer: GatewayId, capacities: tuple[ModelCapacity, ...]) -> None:
        """What a peer says that it serves now; forgotten with its next word."""
        last = self._theirs.get(peer)
        if last is None or last.capacities != capacities:
            self._theirs[peer] = _Said(capacities, frozenset(capacity.model for capacity in capacities))

    def of(self, model: ModelName) -> str:
        if model not in self._labels and not self._take(model):
            return OTHER
        return model

    def known(self) -> Iterable[str]:
        """Those that have series by now."""
        return sorted(self._labels)

    def _take(self, model: ModelName) -> bool:
        """Make it a label, if it may become one."""
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
