"""SGLang's router policy: the best match above a share of the prompt, else the replica with the smallest tree; the
shortest queue while loads are far apart. A baseline: a choice takes time in proportion to the replicas."""

from __future__ import annotations

from gateway.core.kernel.bits import slots_of
from gateway.core.kernel.config import PlacementConfig
from gateway.core.placement.fleet import Fleet
from gateway.core.placement.least_load import LeastLoad
from gateway.core.placement.policy import Choice, share_of
from gateway.core.vocabulary import RequestProfile, Target, TargetKind


class CacheAware(LeastLoad):
    """Cache-aware choice among own replicas; peers are compared by load only, since SGLang's router has none."""

    def __init__(self, fleet: Fleet, config: PlacementConfig) -> None:
        super().__init__(fleet, config)
        self._sent_bytes: dict[int, int] = {}
        """New bytes sent to each replica: the size of its tree, before any eviction."""

    def wants_prefixes(self) -> bool:
        return True

    def choose_replica(self, profile: RequestProfile, mask: int, /) -> Choice:
        config = self.config
        loads = {slot: self.fleet.replica_in_flight(slot) for slot in slots_of(mask)}
        low, high = min(loads.values()), max(loads.values())
        match = self.fleet.match_replicas(profile, mask)
        if high - low > config.cache_aware_spread_max and high > config.cache_aware_spread_ratio * low:
            slot = min(loads, key=loads.__getitem__)
        elif share_of(profile, match.blocks) > config.cache_aware_match_share:
            slot = self.fleet.any_of(match.mask)
        else:
            slot = min(loads, key=lambda slot: self._sent_bytes.get(slot, 0))
        return Choice(slot, self.fleet.match_replicas(profile, 1 << slot).blocks)

    def sent(self, profile: RequestProfile, target: Target, slot: int, matched_blocks: int) -> None:
        if target.kind is TargetKind.REPLICA:
            new_bytes = profile.cached_bytes(profile.prefix_blocks) - profile.cached_bytes(matched_blocks)
            self._sent_bytes[slot] = self._sent_bytes.get(slot, 0) + new_bytes

    def left(self, target: Target, slot: int) -> None:
        if target.kind is TargetKind.REPLICA:
            self._sent_bytes.pop(slot, None)
