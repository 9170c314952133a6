"""Consistent hashing with bounded loads (Mirrokni et al., arXiv 1608.01350), as in HAProxy and Envoy: a session keeps
its replica, unless that has far more requests than the mean; then the next replica on the ring serves it for as long. A
baseline: it never looks at a prompt, and a choice takes time in proportion to the replicas."""

from __future__ import annotations

from math import ceil

from gateway.core.kernel.bits import slots_of
from gateway.core.placement.consistent_hash import ConsistentHash
from gateway.core.placement.policy import Choice
from gateway.core.vocabulary import RequestProfile


class SessionSticky(ConsistentHash):
    """Session affinity with bounded loads for replicas; peers are chosen by plain consistent hashing, since the loads
    of their replicas are unknown."""

    def choose_replica(self, profile: RequestProfile, mask: int, /) -> Choice:
        loads = {slot: self.fleet.replica_in_flight(slot) for slot in slots_of(mask)}
        mean = (sum(loads.values()) + 1) / len(loads)
        limit = ceil(self.config.sticky_load_ratio * mean)
        below = sum(1 << slot for slot in loads if loads[slot] < limit)
        return super().choose_replica(profile, below or mask)
