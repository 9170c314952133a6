"""SkyWalker-CH: consistent hashing by session key, so that a session keeps its target whatever the prompt. It never
looks at loads."""

from __future__ import annotations

from gateway.core.kernel.config import PlacementConfig
from gateway.core.placement.fleet import Fleet
from gateway.core.placement.hash_ring import HashRing
from gateway.core.placement.layered import Layered
from gateway.core.placement.policy import Choice
from gateway.core.vocabulary import RequestProfile, Target, TargetKind


class ConsistentHash(Layered):
    def __init__(self, fleet: Fleet, config: PlacementConfig) -> None:
        super().__init__(fleet, config)
        self._replicas = HashRing(config.ring_virtual_nodes)
        self._peers = HashRing(config.ring_virtual_nodes)

    def choose_replica(self, profile: RequestProfile, mask: int, /) -> Choice:
        return _on_ring(self._replicas, profile, mask)

    def choose_peer(self, profile: RequestProfile, mask: int, _is_remote: bool, /) -> Choice:
        return _on_ring(self._peers, profile, mask)

    def configure(self, config: PlacementConfig) -> None:
        super().configure(config)
        self._replicas.resize(config.ring_virtual_nodes)
        self._peers.resize(config.ring_virtual_nodes)

    def joined(self, target: Target, slot: int) -> None:
        self._ring_of(target).add(slot, target.id)

    def left(self, target: Target, slot: int) -> None:
        self._ring_of(target).remove(slot)

    def _ring_of(self, target: Target) -> HashRing:
        return self._replicas if target.kind is TargetKind.REPLICA else self._peers


def _on_ring(ring: HashRing, profile: RequestProfile, mask: int, /) -> Choice:
    slot = ring.owner(profile.session_key, mask)
    assert slot is not None, "a target is available but not on the ring"
    return Choice(slot)
