"""LMetric (Zhang et al., arXiv 2603.15202): what a replica would have to prefill, times the requests it would run. The
product needs no weights, which is its point. A baseline: a choice costs time in proportion to the replicas.
"""

from __future__ import annotations

from gateway.core.bits import slots_of
from gateway.core.placement.least_load import LeastLoad
from gateway.core.placement.policy import Choice
from gateway.core.vocabulary import RequestProfile


class LMetric(LeastLoad):
    """Among other gateways it knows only loads: the paper has one router in front of every engine."""

    def wants_prefixes(self) -> bool:
        return True

    def choose_replica(self, profile: RequestProfile, mask: int, /) -> Choice:
        fleet = self.fleet
        known = {slot: fleet.match_replicas(profile, 1 << slot).blocks for slot in slots_of(mask)}

        def score(slot: int) -> tuple[int, int, int]:
            to_read = fleet.replica_backlog_bytes(slot) + profile.uncached_bytes(known[slot])
            batch = fleet.replica_load(slot) + 1
            return to_read * batch, batch, slot

        slot = min(known, key=score)
        return Choice(slot, known[slot])
