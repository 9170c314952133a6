"""SkyWalker's prefix policy (§3.2): the target that has most of the prompt, unless its load or distance outweighs that.

The paper's rules and this project's are settings of it. It compares the targets that share the longest match with the
least loaded one; all available regions only where `remote_choice` is `first_token`.
"""

from __future__ import annotations

from math import ceil

from gateway.core.kernel.bits import slots_of
from gateway.core.kernel.config import ExploreRule, PlacementConfig, RemoteChoice
from gateway.core.placement.first_token import FirstTokenLine
from gateway.core.placement.fleet import Fleet
from gateway.core.placement.layered import Layered
from gateway.core.placement.policy import Choice, Offer, is_worth_following, share_of
from gateway.core.placement.prefix_index import Match
from gateway.core.vocabulary import PlacementReason, RequestProfile


class Prefix(Layered):
    def __init__(self, fleet: Fleet, config: PlacementConfig) -> None:
        super().__init__(fleet, config)
        self._first_tokens = FirstTokenLine()
        self._replicas = 0
        """Own replicas of the offer that is weighed, also full ones; mean loads are over these."""

    def weigh(self, profile: RequestProfile, offer: Offer, now_ns: int, /) -> Choice | None:
        self._replicas = offer.replicas
        return super().weigh(profile, offer, now_ns)

    def wants_prefixes(self) -> bool:
        return True

    def choose_replica(self, profile: RequestProfile, mask: int, /) -> Choice:
        match = self.fleet.match_replicas(profile, mask)
        if self.config.explore_rule is ExploreRule.WORTH:
            return self._choose_by_worth(profile, mask, match)
        if self.config.explore_rule is ExploreRule.RATIO:
            return self._choose_within_ratio(profile, mask, match)
        if is_worth_following(profile, match.blocks, self.config.explore_below_share):
            return Choice(self.fleet.least_loaded_replica(match.mask), match.blocks, PlacementReason.LOCAL_PREFIX)
        slot = self.fleet.least_loaded_replica(mask)
        return Choice(slot, _known_at(slot, match), PlacementReason.LOCAL_EXPLORE)

    def choose_peer(self, profile: RequestProfile, mask: int, is_remote: bool, /) -> Choice:
        if is_remote and self.config.remote_choice is RemoteChoice.FIRST_TOKEN:
            return self._choose_earliest(profile, mask)
        match = self.fleet.match_peers(profile, mask)
        if is_remote and share_of(profile, match.blocks) < self.config.remote_prefix_min_share:
            slot = self.fleet.nearest_peer(mask, profile.model)
            return Choice(slot, _known_at(slot, match), PlacementReason.REMOTE_NEAREST)
        slot = self.fleet.nearest_peer(match.mask or mask, profile.model)
        if match.mask:
            reason = PlacementReason.REMOTE_PREFIX if is_remote else PlacementReason.SIBLING_PREFIX
        else:
            reason = PlacementReason.REMOTE_NEAREST if is_remote else PlacementReason.SIBLING_OVERFLOW
        return Choice(slot, match.blocks, reason)

    def first_token(self, profile: RequestProfile, matched_blocks: int, took_ns: int) -> None:
        if self.config.remote_choice is not RemoteChoice.FIRST_TOKEN:
            return
        self._first_tokens.add(profile.uncached_bytes(matched_blocks), took_ns)

    def _choose_by_worth(self, profile: RequestProfile, mask: int, match: Match) -> Choice:
        """Compare two replicas: the one with most of the prompt and the least loaded one."""
        fleet = self.fleet
        idlest = fleet.least_loaded_replica(mask)
        if match.mask >> idlest & 1 or not match.blocks:
            reason = PlacementReason.LOCAL_PREFIX if match.blocks else PlacementReason.LOCAL_EXPLORE
            return Choice(idlest, match.blocks, reason)
        knower = fleet.least_loaded_replica(match.mask)
        kept = fleet.match_replicas(profile, 1 << idlest).blocks
        more_known_bytes = profile.cached_bytes(match.blocks) - profile.cached_bytes(kept)
        more_load = fleet.replica_load(knower) - fleet.replica_load(idlest)
        if more_known_bytes >= more_load * self.config.explore_load_bytes:
            return Choice(knower, match.blocks, PlacementReason.LOCAL_PREFIX)
        return Choice(idlest, kept, PlacementReason.LOCAL_EXPLORE)

    def _choose_within_ratio(self, profile: RequestProfile, mask: int, match: Match) -> Choice:
        """Choose the replica with most of the prompt while that has, with this request, at most a multiple of the mean
        load (ELDR §6). The bound is a whole number, rounded up, so that an idle one takes the request at any mean
        (bounded loads; Mirrokni et al., arXiv 1608.01350)."""
        fleet = self.fleet
        if match.blocks:
            knower = fleet.least_loaded_replica(match.mask)
            replicas = self._replicas | mask
            mean = (fleet.total_load(replicas) + 1) / replicas.bit_count()
            if fleet.replica_load(knower) + 1 <= ceil(self.config.explore_load_ratio * mean):
                return Choice(knower, match.blocks, PlacementReason.LOCAL_PREFIX)
        idlest = fleet.least_loaded_replica(mask)
        return Choice(idlest, fleet.match_replicas(profile, 1 << idlest).blocks, PlacementReason.LOCAL_EXPLORE)

    def _choose_earliest(self, profile: RequestProfile, mask: int, /) -> Choice:
        """Choose the peer with the earliest expected first token, estimated from own replicas' times to first token."""
        known = {slot: self.fleet.match_peers(profile, 1 << slot).blocks for slot in slots_of(mask)}

        def expected_ns(slot: int) -> float:
            uncached = profile.uncached_bytes(known[slot])
            waiting = self.fleet.peer_load(slot, profile.model) * self._first_tokens.estimate_ns(0)
            return self.fleet.peer_rtt_ns(slot) + waiting + self._first_tokens.estimate_ns(uncached)

        slot = min(known, key=lambda slot: (expected_ns(slot), slot))
        reason = PlacementReason.REMOTE_PREFIX if known[slot] else PlacementReason.REMOTE_NEAREST
        return Choice(slot, known[slot], reason)


def _known_at(slot: int, match: Match) -> int:
    return match.blocks if match.mask >> slot & 1 else 0
