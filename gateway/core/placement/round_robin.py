"""Baseline that takes targets in turn, replicas and peers separately. It never looks at loads."""

from __future__ import annotations

from gateway.core.kernel.bits import next_slot_from
from gateway.core.kernel.config import PlacementConfig
from gateway.core.placement.fleet import Fleet
from gateway.core.placement.layered import Layered
from gateway.core.placement.policy import Choice
from gateway.core.vocabulary import RequestProfile


class RoundRobin(Layered):
    def __init__(self, fleet: Fleet, config: PlacementConfig) -> None:
        super().__init__(fleet, config)
        self._next_replica = 0
        self._next_peer = 0

    def choose_replica(self, _profile: RequestProfile, mask: int, /) -> Choice:
        slot = next_slot_from(mask, self._next_replica)
        self._next_replica = slot + 1
        return Choice(slot)

    def choose_peer(self, _profile: RequestProfile, mask: int, _is_remote: bool, /) -> Choice:
        slot = next_slot_from(mask, self._next_peer)
        self._next_peer = slot + 1
        return Choice(slot)
