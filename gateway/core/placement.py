"""Filter, score, pick: this replica, that gateway, or nobody yet (SkyWalker, Algorithm 1).

The region's own replicas come first, sibling gateways compete with them by prefix, other regions are asked only when
nobody
here is available. It looks at the fleet and remembers prefixes; it never starts anything.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import assert_never

from gateway.core.bits import next_slot_from, select_slot, slots_of
from gateway.core.config import ExploreRule, OverflowMode, PlacementConfig, PlacementPolicy, RemoteChoice
from gateway.core.first_token import FirstTokenLine
from gateway.core.hash_ring import HashRing
from gateway.core.peers import Peers, PeerState
from gateway.core.prefix_index import Match, PrefixIndex
from gateway.core.replicas import Replicas, ReplicaState
from gateway.core.requests import RequestClass, RequestState
from gateway.core.value import value
from gateway.core.vocabulary import (
    Candidate,
    GatewayId,
    PlacementReason,
    RegionName,
    ReplicaId,
    Standing,
    Target,
    TargetKind,
)

_LOCAL_REASONS = frozenset({PlacementReason.LOCAL_PREFIX, PlacementReason.LOCAL_EXPLORE, PlacementReason.LOCAL_POLICY})
_FULL = frozenset({Standing.PENDING, Standing.CREDIT, Standing.OUTSTANDING})
_CLASSES_CACHED_MAX = 1024


@value
class Placement:
    """One choice, with what it rested on."""

    state: ReplicaState | PeerState
    reason: PlacementReason
    matched_blocks: int
    candidates: int
    kept_blocks: int
    """How many of the prompt's blocks the index already had for this target."""
    considered: tuple[Candidate, ...] = ()


@value
class _Choice:
    slot: int
    reason: PlacementReason
    matched_blocks: int


@dataclass(slots=True)
class _Targets:
    """Which targets one class may go to; kept until the fleet changes."""

    replicas_version: int = -1
    eligible_replicas: int = 0
    peers_version: int = -1
    available_peers: int = 0


class Placer:
    """Chooses a target for the head of a class. Costs do not grow with the number of replicas or of waiting
    requests."""

    def __init__(
        self, region: RegionName, config: PlacementConfig, replicas: Replicas, peers: Peers, rng: random.Random
    ):
        self._region = region
        self._config = config
        self._replicas = replicas
        self._peers = peers
        self._rng = rng
        self._cursors = {"replica": 0, "peer": 0}
        self._targets: dict[RequestClass, _Targets] = {}
        self._sibling_mask = 0
        self._first_tokens = FirstTokenLine()
        self._sent_blocks: dict[int, int] = {}
        """By replica, the blocks that it was first to be sent by us: the size of its tree, before anything is
        forgotten."""
        self.replica_index = PrefixIndex(config.prefix_index_bytes_max, config.prefix_ttl_ns)
        self.peer_index = PrefixIndex(config.prefix_index_bytes_max, config.prefix_ttl_ns)
        """The regional snapshot: what we forwarded where."""
        self._replica_ring = HashRing(config.ring_virtual_nodes)
        self._peer_ring = HashRing(config.ring_virtual_nodes)

    # What changes it

    def configure(self, config: PlacementConfig) -> None:
        """Take new settings. Indexes and rings start afresh only if their own sizes changed."""
        old, self._config = self._config, config
        self._targets.clear()
        if (old.prefix_index_bytes_max, old.prefix_ttl_ns) != (config.prefix_index_bytes_max, config.prefix_ttl_ns):
            self.replica_index = PrefixIndex(config.prefix_index_bytes_max, config.prefix_ttl_ns)
            self.peer_index = PrefixIndex(config.prefix_index_bytes_max, config.prefix_ttl_ns)
        if old.ring_virtual_nodes != config.ring_virtual_nodes:
            self._rebuild_rings()

    def replicas_changed(self, joined: list[ReplicaState], left: list[ReplicaState]) -> None:
        for state in left:
            self._sent_blocks.pop(state.slot, None)
            self.replica_index.remove_target(state.slot)
            self._replica_ring.remove(state.slot)
        for state in joined:
            self._replica_ring.add(state.slot, state.spec.replica_id)

    def peers_changed(self, joined: list[PeerState], left: list[PeerState]) -> None:
        for state in left:
            self.peer_index.remove_target(state.slot)
            self._peer_ring.remove(state.slot)
        for state in joined:
            self._peer_ring.add(state.slot, state.spec.gateway_id)
        self._sibling_mask = sum(1 << state.slot for state in self._peers if state.spec.place.region == self._region)

    def expire_prefixes(self, now_ns: int) -> None:
        """Forget prefixes that nothing refreshed for their time to live; the cost follows what aged meanwhile."""
        self.replica_index.expire(now_ns)
        self.peer_index.expire(now_ns)

    def retract(self, request: RequestState, state: PeerState, kept_blocks: int) -> None:
        """A peer refused: what its snapshot gained by this request was never there."""
        if state.listed and self._remembers_prefixes:
            self.peer_index.retract(request.profile.prefix, state.slot, kept_blocks)

    def learn_first_token(self, request: RequestState, kept_blocks: int, took_ns: int) -> None:
        """A replica of ours gave its first token this long after it was asked."""
        profile = request.profile
        self._first_tokens.add(max(0, profile.prompt_bytes - kept_blocks * profile.prefix_block_bytes), took_ns)

    # What is asked of it

    def has_target(self, request_class: RequestClass) -> bool:
        """Is anybody available for this class right now?"""
        if request_class.pinned is not None:
            return self._pinned_slot(request_class, request_class.pinned) is not None
        return bool(
            self._available_replicas(request_class)
            or self._available_siblings(request_class)
            or self._available_remotes(request_class)
            or self._crowded_replicas(request_class)
        )

    def has_replica(self, request_class: RequestClass) -> bool:
        """Is one of our own replicas available for this class right now?"""
        return bool(self._available_replicas(request_class))

    def place(self, request: RequestState, now_ns: int) -> Placement | None:
        """Choose a target and remember the prefix there; None when the request has to wait."""
        if request.request_class.pinned is not None:
            return self._place_pinned(request, request.request_class.pinned, now_ns)
        local = self._available_replicas(request.request_class)
        others = self._available_siblings(request.request_class)
        choice = self._choose_in_region(request, local, others)
        if choice is None:
            others = self._available_remotes(request.request_class)
            choice = self._choose_peer(request, others, is_remote=True)
        if choice is None:
            local = self._crowded_replicas(request.request_class)
            choice = self._choose_replica(request, local)
        if choice is None:
            return None
        return self._settle(request, choice, local.bit_count() + others.bit_count(), now_ns)

    def shadow(self, request: RequestState) -> Placement | None:
        """Where the request would have been forwarded, were overflow on and not in shadow; nothing is remembered."""
        request_class = request.request_class
        may_go = request_class.may_cross_regions and request_class.pinned is None
        if not may_go or self._mode_of(request_class) is not OverflowMode.SHADOW:
            return None
        remotes = self._available_peers(request_class) & ~self._sibling_mask
        choice = self._choose_peer(request, remotes, is_remote=True)
        if choice is None:
            return None
        return self._placement(request, choice, remotes.bit_count())

    def can_ever_reach(self, request_class: RequestClass) -> bool:
        """Is the pinned target still ours or known, and does the rule allow it?"""
        pinned = request_class.pinned
        assert pinned is not None, "only for what is pinned"
        if pinned.kind is TargetKind.REPLICA:
            replica = self._replicas.get(ReplicaId(pinned.id))
            return replica is not None and request_class.rule.allows(replica.spec.place)
        peer = self._peers.get(GatewayId(pinned.id))
        if peer is None or not request_class.rule.allows(peer.spec.place):
            return False
        is_sibling = bool(self._sibling_mask >> peer.slot & 1)
        return request_class.may_stay_in_region if is_sibling else request_class.may_cross_regions

    # Layers

    def _choose_in_region(self, request: RequestState, local: int, siblings: int) -> _Choice | None:
        if not siblings:
            return self._choose_replica(request, local)
        sibling = self._choose_peer(request, siblings, is_remote=False)
        replica = self._choose_replica(request, local)
        if replica is None or sibling is None:
            return replica or sibling
        knows_more = sibling.matched_blocks > replica.matched_blocks
        return sibling if knows_more and self._is_worth_following(request, sibling.matched_blocks) else replica

    def _choose_replica(self, request: RequestState, mask: int) -> _Choice | None:
        if not mask:
            return None
        if self._config.policy is PlacementPolicy.CACHE_AWARE:
            return self._choose_cache_aware(request, mask)
        if self._config.policy is not PlacementPolicy.PREFIX:
            return _Choice(self._pick_replica(request, mask), PlacementReason.LOCAL_POLICY, 0)
        match = self.replica_index.match(request.profile.prefix, mask)
        if self._config.explore_rule is ExploreRule.WORTH:
            return self._choose_by_worth(request, mask, match)
        if self._is_worth_following(request, match.blocks):
            return _Choice(self._replicas.least_loaded(match.mask), PlacementReason.LOCAL_PREFIX, match.blocks)
        slot = self._replicas.least_loaded(mask)
        kept = match.blocks if match.mask >> slot & 1 else 0
        return _Choice(slot, PlacementReason.LOCAL_EXPLORE, kept)

    def _choose_by_worth(self, request: RequestState, mask: int, match: Match) -> _Choice:
        """Two replicas compete: whoever knows most of the prompt, and whoever has least to do."""
        idlest = self._replicas.least_loaded(mask)
        if match.mask >> idlest & 1 or not match.blocks:
            reason = PlacementReason.LOCAL_PREFIX if match.blocks else PlacementReason.LOCAL_EXPLORE
            return _Choice(idlest, reason, match.blocks)
        knower = self._replicas.least_loaded(match.mask)
        kept = self.replica_index.match(request.profile.prefix, 1 << idlest).blocks
        more_known_bytes = (match.blocks - kept) * request.profile.prefix_block_bytes
        more_load = self._replicas.load_at(knower) - self._replicas.load_at(idlest)
        if more_known_bytes >= more_load * self._config.explore_load_bytes:
            return _Choice(knower, PlacementReason.LOCAL_PREFIX, match.blocks)
        return _Choice(idlest, PlacementReason.LOCAL_EXPLORE, kept)

    def _choose_cache_aware(self, request: RequestState, mask: int) -> _Choice:
        config = self._config
        loads = {slot: self._replicas.at(slot).in_flight for slot in slots_of(mask)}
        low, high = min(loads.values()), max(loads.values())
        match = self.replica_index.match(request.profile.prefix, mask)
        if high - low > config.cache_aware_spread_max and high > config.cache_aware_spread_ratio * low:
            slot = min(loads, key=loads.__getitem__)
        elif self._share_of(request, match.blocks) > config.cache_aware_match_share:
            slot = self._any_of(match.mask)
        else:
            slot = min(loads, key=lambda slot: self._sent_blocks.get(slot, 0))
        matched = self.replica_index.match(request.profile.prefix, 1 << slot).blocks
        return _Choice(slot, PlacementReason.LOCAL_POLICY, matched)

    def _choose_peer(self, request: RequestState, mask: int, *, is_remote: bool) -> _Choice | None:
        if not mask:
            return None
        if self._config.policy is not PlacementPolicy.PREFIX:
            reason = PlacementReason.REMOTE_POLICY if is_remote else PlacementReason.SIBLING_OVERFLOW
            return _Choice(self._pick_peer(request, mask), reason, 0)
        if is_remote and self._config.remote_choice is RemoteChoice.FIRST_TOKEN:
            return self._choose_earliest(request, mask)
        match = self.peer_index.match(request.profile.prefix, mask)
        if is_remote and self._share_of(request, match.blocks) < self._config.remote_prefix_min_share:
            slot = self._nearest(mask, request)
            kept = match.blocks if match.mask >> slot & 1 else 0
            return _Choice(slot, PlacementReason.REMOTE_NEAREST, kept)
        slot = self._nearest(match.mask or mask, request)
        if match.mask:
            reason = PlacementReason.REMOTE_PREFIX if is_remote else PlacementReason.SIBLING_PREFIX
        else:
            reason = PlacementReason.REMOTE_NEAREST if is_remote else PlacementReason.SIBLING_OVERFLOW
        return _Choice(slot, reason, match.blocks)

    def _choose_earliest(self, request: RequestState, mask: int) -> _Choice:
        """The region from which the first token should come first, as far as our own replicas tell."""
        profile = request.profile
        known = {slot: self.peer_index.match(profile.prefix, 1 << slot).blocks for slot in slots_of(mask)}

        def expected_ns(slot: int) -> float:
            uncached = max(0, profile.prompt_bytes - known[slot] * profile.prefix_block_bytes)
            waiting = self._peer_load(slot, request) * self._first_tokens.estimate_ns(0)
            return self._peers.at(slot).rtt_ns + waiting + self._first_tokens.estimate_ns(uncached)

        slot = min(known, key=lambda slot: (expected_ns(slot), slot))
        reason = PlacementReason.REMOTE_PREFIX if known[slot] else PlacementReason.REMOTE_NEAREST
        return _Choice(slot, reason, known[slot])

    def _share_of(self, request: RequestState, blocks: int) -> float:
        return blocks * request.profile.prefix_block_bytes / max(1, request.profile.prompt_bytes)

    def _is_worth_following(self, request: RequestState, matched_blocks: int) -> bool:
        if not matched_blocks:
            return False
        matched_bytes = matched_blocks * request.profile.prefix_block_bytes
        return matched_bytes >= self._config.explore_below_share * request.profile.prompt_bytes

    # Picks

    def _pick_replica(self, request: RequestState, mask: int) -> int:
        match self._config.policy:
            case PlacementPolicy.PREFIX | PlacementPolicy.LEAST_LOAD | PlacementPolicy.CACHE_AWARE:
                return self._replicas.least_loaded(mask)
            case PlacementPolicy.CONSISTENT_HASH:
                return self._on_ring(self._replica_ring, request, mask)
            case PlacementPolicy.ROUND_ROBIN | PlacementPolicy.NEAREST_REGION:
                return self._next_in_turn("replica", mask)
            case PlacementPolicy.RANDOM:
                return self._any_of(mask)
            case PlacementPolicy.POWER_OF_TWO:
                return min(self._any_of(mask), self._any_of(mask), key=self._replicas.load_at)
            case _ as never:
                assert_never(never)

    def _pick_peer(self, request: RequestState, mask: int) -> int:
        match self._config.policy:
            case PlacementPolicy.PREFIX | PlacementPolicy.LEAST_LOAD | PlacementPolicy.CACHE_AWARE:
                return self._least_loaded_peer(mask, request)
            case PlacementPolicy.NEAREST_REGION:
                return self._nearest(mask, request)
            case PlacementPolicy.CONSISTENT_HASH:
                return self._on_ring(self._peer_ring, request, mask)
            case PlacementPolicy.ROUND_ROBIN:
                return self._next_in_turn("peer", mask)
            case PlacementPolicy.RANDOM:
                return self._any_of(mask)
            case PlacementPolicy.POWER_OF_TWO:
                pair = 1 << self._any_of(mask) | 1 << self._any_of(mask)
                return self._least_loaded_peer(pair, request)
            case _ as never:
                assert_never(never)

    def _on_ring(self, ring: HashRing, request: RequestState, mask: int) -> int:
        slot = ring.owner(request.profile.session_key, mask)
        assert slot is not None, "a target is available but not on the ring"
        return slot

    def _next_in_turn(self, kind: str, mask: int) -> int:
        slot = next_slot_from(mask, self._cursors[kind])
        self._cursors[kind] = slot + 1
        return slot

    def _any_of(self, mask: int) -> int:
        return select_slot(mask, self._rng.randrange(mask.bit_count()))

    def _nearest(self, mask: int, request: RequestState) -> int:
        return min(slots_of(mask), key=lambda slot: (self._peers.at(slot).rtt_ns, self._peer_load(slot, request)))

    def _least_loaded_peer(self, mask: int, request: RequestState) -> int:
        return min(slots_of(mask), key=lambda slot: (self._peer_load(slot, request), self._peers.at(slot).rtt_ns))

    def _peer_load(self, slot: int, request: RequestState) -> int:
        state = self._peers.at(slot)
        return self._peers.queue_length(state, request.profile.model) + len(state.unreflected)

    # Inside

    def _place_pinned(self, request: RequestState, pinned: Target, now_ns: int) -> Placement | None:
        """To the one target that will do, once it is free; a control request only needs it to answer."""
        slot = self._pinned_slot(request.request_class, pinned)
        if slot is None:
            return None
        return self._settle(request, _Choice(slot, PlacementReason.STORED_RESPONSE, 0), 1, now_ns)

    def _pinned_slot(self, request_class: RequestClass, pinned: Target) -> int | None:
        if not self.can_ever_reach(request_class):
            return None
        if pinned.kind is TargetKind.REPLICA:
            replica = self._replicas.get(ReplicaId(pinned.id))
            assert replica is not None
            free = self._replicas.reachable if request_class.is_control else self._replicas.available
            return replica.slot if free >> replica.slot & 1 else None
        peer = self._peers.get(GatewayId(pinned.id))
        assert peer is not None
        return peer.slot if self._peers.usable >> peer.slot & 1 else None

    def _settle(self, request: RequestState, choice: _Choice, candidates: int, now_ns: int) -> Placement:
        placement = self._placement(request, choice, candidates)
        if self._remembers_prefixes:
            if choice.reason in _LOCAL_REASONS:
                new_blocks = request.profile.prefix_blocks - choice.matched_blocks
                self._sent_blocks[choice.slot] = self._sent_blocks.get(choice.slot, 0) + new_blocks
            index = self.peer_index if isinstance(placement.state, PeerState) else self.replica_index
            index.insert(request.profile.prefix, choice.slot, now_ns)
        return placement

    def _placement(self, request: RequestState, choice: _Choice, candidates: int) -> Placement:
        state = self._state_of(request, choice)
        considered = self._considered(request, state) if self._config.considered_max else ()
        return Placement(state, choice.reason, choice.matched_blocks, candidates, choice.matched_blocks, considered)

    def _state_of(self, request: RequestState, choice: _Choice) -> ReplicaState | PeerState:
        pinned = request.request_class.pinned
        is_local = choice.reason in _LOCAL_REASONS or (pinned is not None and pinned.kind is TargetKind.REPLICA)
        return self._replicas.at(choice.slot) if is_local else self._peers.at(choice.slot)

    # The record

    def _considered(self, request: RequestState, chosen: ReplicaState | PeerState) -> tuple[Candidate, ...]:
        """The chosen target first, then its rivals: the least loaded replicas, and the peers, half of the room each."""
        room = self._config.considered_max - 1
        for_replicas = room - min(len(self._peers), room // 2)
        eligible = self._targets_of(request.request_class).eligible_replicas
        few = self._replicas.few_least_loaded(eligible, for_replicas + 1)
        replicas = [state for state in map(self._replicas.at, few) if state is not chosen][:for_replicas]
        peers = [state for state in self._peers if state is not chosen][: room - len(replicas)]
        return tuple(self._candidate(request, state) for state in (chosen, *replicas, *peers))

    def _candidate(self, request: RequestState, state: ReplicaState | PeerState) -> Candidate:
        request_class = request.request_class
        prefix, bit = request.profile.prefix, 1 << state.slot
        if isinstance(state, ReplicaState):
            failed = request_class.failed_replicas & bit
            standing = Standing.FAILED_BEFORE if failed else state.standing
            matched = self.replica_index.match(prefix, bit).blocks
            return Candidate(state.target, standing, matched, state.load)
        failed = request_class.failed_peers & bit
        standing = self._peers.standing_for(state, request_class.model, request_class.rule)
        matched = self.peer_index.match(prefix, bit).blocks
        load = self._peer_load(state.slot, request)
        return Candidate(state.target, Standing.FAILED_BEFORE if failed else standing, matched, load, state.rtt_ns)

    @property
    def _remembers_prefixes(self) -> bool:
        return self._config.policy in (PlacementPolicy.PREFIX, PlacementPolicy.CACHE_AWARE)

    def _available_replicas(self, request_class: RequestClass) -> int:
        return self._targets_of(request_class).eligible_replicas & self._replicas.available

    def _crowded_replicas(self, request_class: RequestClass) -> int:
        """Those that are full and get more nevertheless, where nobody is let wait."""
        if self._config.policy is not PlacementPolicy.NEAREST_REGION:
            return 0
        full = sum(1 << state.slot for state in self._replicas if state.standing in _FULL)
        return self._targets_of(request_class).eligible_replicas & full

    def _available_siblings(self, request_class: RequestClass) -> int:
        if not self._sibling_mask or not request_class.may_stay_in_region:
            return 0
        return self._available_peers(request_class) & self._sibling_mask

    def _available_remotes(self, request_class: RequestClass) -> int:
        if not self._may_overflow(request_class):
            return 0
        return self._available_peers(request_class) & ~self._sibling_mask

    def _available_peers(self, request_class: RequestClass) -> int:
        targets = self._targets_of(request_class)
        if targets.peers_version != self._peers.version:
            targets.peers_version = self._peers.version
            targets.available_peers = self._untried_or_all(request_class)
        return targets.available_peers

    def _untried_or_all(self, request_class: RequestClass) -> int:
        """Peers that failed the request are asked again only when there is nobody else whom it could ever ask."""
        available = self._peers.available(request_class.model, request_class.rule)
        untried = available & ~request_class.failed_peers
        if untried or not request_class.failed_peers or self._has_untried_peer(request_class):
            return untried
        everywhere = self._replicas.eligible(request_class.model, request_class.rule)
        return untried if everywhere & ~request_class.failed_replicas else available

    def _targets_of(self, request_class: RequestClass) -> _Targets:
        targets = self._targets.get(request_class)
        if targets is None:
            if len(self._targets) >= _CLASSES_CACHED_MAX:
                self._targets.clear()
            targets = self._targets[request_class] = _Targets()
        if targets.replicas_version != self._replicas.version or request_class.failed_replicas:
            targets.replicas_version = self._replicas.version
            targets.eligible_replicas = self._eligible_replicas(request_class)
        return targets

    def _eligible_replicas(self, request_class: RequestClass) -> int:
        """A request avoids the replicas that failed it, as long as there is anywhere else it could ever go."""
        everywhere = self._replicas.eligible(request_class.model, request_class.rule)
        untried = everywhere & ~request_class.failed_replicas
        if untried or self._has_untried_peer(request_class):
            return untried
        return everywhere

    def _has_untried_peer(self, request_class: RequestClass) -> bool:
        within_reach = 0
        if request_class.may_stay_in_region:
            within_reach |= self._sibling_mask
        if self._may_overflow(request_class):
            within_reach |= ~self._sibling_mask
        if not within_reach:
            return False
        eligible = self._peers.eligible(request_class.model, request_class.rule)
        return bool(eligible & within_reach & ~request_class.failed_peers)

    def _may_overflow(self, request_class: RequestClass) -> bool:
        return request_class.may_cross_regions and self._mode_of(request_class) is OverflowMode.ON

    def _mode_of(self, request_class: RequestClass) -> OverflowMode:
        return self._config.overflow_of(request_class.model)

    def _rebuild_rings(self) -> None:
        self._replica_ring = HashRing(self._config.ring_virtual_nodes)
        self._peer_ring = HashRing(self._config.ring_virtual_nodes)
        self.replicas_changed(list(self._replicas), [])
        self.peers_changed(list(self._peers), [])
