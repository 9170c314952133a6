"""LMetric (Zhang et al., arXiv 2603.15202): minimises the bytes a replica would have to prefill times the requests it
would run. A product needs no weights, which is the point of the metric. A baseline: a choice takes time in proportion
to the replicas."""

from __future__ import annotations

from gateway.core.kernel.bits import slots_of
from gateway.core.placement.least_load import LeastLoad
from gateway.core.placement.policy import Choice
from gateway.core.vocabulary import RequestProfile


class LMetric(LeastLoad):
    """LMetric among own replicas; peers are compared by load only, since the paper has one router in front of every
    engine."""

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
