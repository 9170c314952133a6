"""Find targets with room to spare for requests that yield to others.

A best-effort request goes to an idle target. A batch request, or a request of a tenant above its fair share, goes to a
target that prefills nothing and keeps a share of its room free; the number of slots of an engine is declared, reported
or learnt (`slots`). This module judges targets, not the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Final

from gateway.core.kernel.bits import slots_of
from gateway.core.kernel.peers import Peers
from gateway.core.kernel.replicas import Replicas
from gateway.core.kernel.request_class import RequestClass
from gateway.core.vocabulary import RegionName, ServiceClass

_LOOKED_AT_MAX: Final = 8
"""Number of the least loaded replicas that are examined; if none of these has room, hardly any other has."""
Homes = Callable[[], int]
"""Function that returns the mask of the replicas that some request is held for."""
_BEST_EFFORT: Final = ServiceClass.BEST_EFFORT


class SpareCapacity:
    """Targets of one gateway with room to spare."""

    def __init__(self, replicas: Replicas, peers: Peers, homes: Homes = lambda: 0) -> None:
        self._homes = homes
        self._replicas = replicas
        self._peers = peers

    def replicas_with_room(self, mask: int, request_class: RequestClass) -> int:
        """Mask of the replicas of `mask` (available ones) that no request is held for and that have room."""
        mask &= ~self._homes()
        if request_class.service_class is _BEST_EFFORT:
            return self._replicas.idle(mask)
        few = self._replicas.few_least_loaded(mask, _LOOKED_AT_MAX)
        return self._replicas.rooms.spare(sum([1 << slot for slot in few]))

    def peers_with_room(self, mask: int, request_class: RequestClass) -> int:
        """Mask of the peers of `mask` (available ones) that report spare room. The receiving gateway checks again and
        may refuse."""
        found = 0
        for slot in slots_of(mask):
            is_idle = request_class.service_class is _BEST_EFFORT
            if self._peers.spare(self._peers.at(slot), request_class, is_idle=is_idle) > 0:
                found |= 1 << slot
        return found

    def batch_rooms(self, replicas: int, peers: int, request_class: RequestClass) -> dict[RegionName, int]:
        """Batch requests that targets could run at once beside what runs, by region: available replicas, of which those
        with room count, and peers that have room."""
        found: dict[RegionName, int] = {}
        free_share = self._replicas.rooms.free_share
        for slot in slots_of(self._replicas.rooms.spare(replicas & ~self._homes())):
            replica = self._replicas.at(slot)
            room = int((1 - free_share) * (replica.load + replica.room)) - replica.load
            region = replica.spec.place.region
            found[region] = found.get(region, 0) + max(1, room)
        for slot in slots_of(peers):
            peer = self._peers.at(slot)
            free, total = self._peers.free_slots(peer, request_class)
            room = free - ceil(free_share * total)
            found[peer.spec.place.region] = found.get(peer.spec.place.region, 0) + max(1, room)
        return found
