"""Policy of llm-d's router since July 2026, `prefix-cache-affinity-filter` then `token-load-scorer`: keep the replicas
that have nearly all of a prompt, unless the best of them has too much prefill ahead; of those, take the one with least
to prefill. A baseline: a choice takes time in proportion to the replicas."""

from __future__ import annotations

from gateway.core.kernel.bits import slots_of
from gateway.core.placement.least_load import LeastLoad
from gateway.core.placement.policy import Choice
from gateway.core.vocabulary import RequestProfile

_SECOND_NS = 1_000_000_000


class AffinityLoad(LeastLoad):
    """Affinity and token load among own replicas; peers are compared by load only, since llm-d's router has none."""

    def wants_prefixes(self) -> bool:
        return True

    def choose_replica(self, profile: RequestProfile, mask: int, /) -> Choice:
        fleet = self.fleet
        known = {slot: fleet.match_replicas(profile, 1 << slot).blocks for slot in slots_of(mask)}
        loads = {slot: fleet.replica_backlog_bytes(slot) + profile.uncached_bytes(known[slot]) for slot in known}
        kept = self._sticky_or_all(profile, known)
        least = min(loads[slot] for slot in kept)
        slot = fleet.any_of(sum(1 << slot for slot in kept if loads[slot] == least))
        return Choice(slot, known[slot])

    def _sticky_or_all(self, profile: RequestProfile, known: dict[int, int]) -> list[int]:
        """Filter: replicas that have enough of the prompt, while the wait there is not too much longer than
        elsewhere."""
        bytes_min = self.config.affinity_match_share * profile.cached_bytes(profile.prefix_blocks)
        sticky = [slot for slot in known if profile.prefix_blocks and profile.cached_bytes(known[slot]) >= bytes_min]
        others = [slot for slot in known if slot not in sticky]
        if not sticky or (others and self._wait_ns(sticky) - self._wait_ns(others) > self.config.affinity_wait_max_ns):
            return list(known)
        return sticky

    def _wait_ns(self, slots: list[int]) -> int:
        """Wait at the least busy of the replicas, at the rate at which an otherwise idle engine prefills."""
        backlog_bytes = min(self.fleet.replica_backlog_bytes(slot) for slot in slots)
        return backlog_bytes * _SECOND_NS // self.config.affinity_prefill_bytes
