"""A session keeps its replica, unless that has much more to do than the others: then the next on the ring has it, for
as long. Consistent hashing with bounded loads (Mirrokni et al., arXiv 1608.01350), as in HAProxy and Envoy. A baseline:
it never looks at a prompt, and a choice costs time in proportion to the replicas.
"""

from __future__ import annotations

from math import ceil

from gateway.core.bits import slots_of
from gateway.core.placement.consistent_hash import ConsistentHash
from gateway.core.placement.policy import Choice
from gateway.core.vocabulary import RequestProfile


class SessionSticky(ConsistentHash):
    """Other gateways are chosen as by its parent: of their replicas it knows nothing."""

    def choose_replica(self, profile: RequestProfile, mask: int, /) -> Choice:
        loads = {slot: self.fleet.replica_in_flight(slot) for slot in slots_of(mask)}
        mean = (sum(loads.values()) + 1) / len(loads)
        limit = ceil(self.config.sticky_load_ratio * mean)
        below = sum(1 << slot for slot in loads if loads[slot] < limit)
        return super().choose_replica(profile, below or mask)
