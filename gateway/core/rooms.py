"""Where there is room to spare: for requests that yield, who go where nobody misses it, and nowhere else.

What is best effort goes where nobody runs. What is a batch, or of a tenant that has more than its share, goes where
nothing is being read and a share of an engine's room stays free; how many requests an engine runs at once it does not
tell, so that is learnt from when it had some waiting. It judges targets, and knows nothing of who else waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.core.bits import slots_of
from gateway.core.peers import Peers
from gateway.core.replicas import Replicas, ReplicaState
from gateway.core.requests import RequestClass
from gateway.core.sharing_config import ClassesConfig
from gateway.core.vocabulary import ServiceClass

_LOOKED_AT_MAX: Final = 8
"""Of our replicas, the least loaded; if none of these has room, hardly any has."""
Homes = Callable[[], int]
"""Mask of the replicas that somebody is held for."""
_BEST_EFFORT: Final = ServiceClass.BEST_EFFORT


class Rooms:
    """Of one gateway."""

    def __init__(self, replicas: Replicas, peers: Peers, homes: Homes = lambda: 0) -> None:
        self._homes = homes
        self._replicas = replicas
        self._peers = peers
        self._config = ClassesConfig()

    def configure(self, config: ClassesConfig) -> None:
        self._config = config

    def replicas_with_room(self, mask: int, request_class: RequestClass) -> int:
        """Of those in the mask, which are free, the ones that nobody is held for and that have room."""
        mask &= ~self._homes()
        if request_class.service_class is _BEST_EFFORT:
            return self._replicas.idle(mask)
        found = 0
        for slot in self._replicas.few_least_loaded(mask, _LOOKED_AT_MAX):
            if has_room(self._replicas.at(slot), self._config.batch.free_share):
                found |= 1 << slot
        return found

    def peers_with_room(self, mask: int, request_class: RequestClass) -> int:
        """Of those in the mask, which are free, the ones that say so; whoever is asked says so again, or refuses."""
        found = 0
        for slot in slots_of(mask):
            is_idle = request_class.service_class is _BEST_EFFORT
            spare = self._peers.spare(self._peers.at(slot), request_class.model, request_class.rule, is_idle=is_idle)
            if spare > (0.0 if is_idle else self._config.batch.free_share):
                found |= 1 << slot
        return found


def has_room(state: ReplicaState, free_share: float) -> bool:
    """For one more batch request, with that share still free."""
    if state.backlog_bytes or state.waiting:
        return False
    if not state.load:
        return True
    if state.kv_usage > 1 - free_share:
        return False
    return not state.slots.total or state.load + 1 <= (1 - free_share) * state.slots.total
