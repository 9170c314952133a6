"""Placement of a request: offers the policy the eligible targets, and records its choice.

It looks at the fleet and maintains the prefix indexes. It never starts a leg, and never accepts a target that the
policy was not offered.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from gateway.core.kernel.config import PlacementConfig
from gateway.core.kernel.events import LegEnded
from gateway.core.kernel.peers import Peers, PeerState
from gateway.core.kernel.replicas import READ_NS_PER_BYTE, Replicas, ReplicaState
from gateway.core.kernel.request_class import RequestClass
from gateway.core.kernel.requests import Hold, LegState, RequestState
from gateway.core.kernel.spare_capacity import Homes
from gateway.core.placement.catalogue import BUILT_IN
from gateway.core.placement.eligibility import Eligibility, PoolQueue
from gateway.core.placement.engine_word import EngineWord
from gateway.core.placement.fleet import ExactMatch, Fleet, ToldMatch
from gateway.core.placement.layered import Layered
from gateway.core.placement.policy import (
    Choice,
    Offer,
    PlugIns,
    PolicyFactory,
    Weighed,
    no_plug_ins,
    share_of,
)
from gateway.core.placement.prefix_index import PrefixIndex
from gateway.core.vocabulary import (
    NO_HINTS,
    Candidate,
    Costs,
    Figure,
    GatewayId,
    LegResult,
    LegRole,
    PlacementReason,
    PoolStep,
    RegionName,
    RequestProfile,
    ServiceClass,
    Standing,
    Target,
    TargetKind,
)

_Found = tuple[ReplicaState | PeerState, PlacementReason, int]
"""Target, the reason for it, and the number of the prompt's blocks that it has."""

TOLD_BLOCKS: Final = "told_blocks"
"""Figure of a peer that tells of more of the prompt than was forwarded there."""
_READ_MARGIN: Final = 2
"""Multiple of the measured time after which a prompt is taken to be read where no first token is heard of."""
_UNREAD: Final = (LegResult.CLIENT_ERROR, LegResult.TOO_LONG)


class Placement:
    """Choice of a target, with the facts that led to it."""

    __slots__ = ("candidates", "considered", "matched_blocks", "reason", "state", "step", "uncached_bytes")

    def __init__(
        self,
        state: ReplicaState | PeerState,
        reason: PlacementReason,
        matched_blocks: int,
        candidates: int,
        considered: tuple[Candidate, ...] = (),
        *,
        uncached_bytes: int = -1,
    ) -> None:
        self.state = state
        self.reason = reason
        self.matched_blocks = matched_blocks
        """Number of the prompt's blocks that the index already had for this target."""
        self.candidates = candidates
        self.considered = considered
        self.uncached_bytes = uncached_bytes
        """Bytes of the prompt that the target has to prefill, where the policy knows better than by matched blocks;
        else −1."""
        self.step: PoolStep | None = None
        """Step by which the request came to its pool, where pools were compared."""


class Placer:
    """Chooses a target for the head of a class's queue. Under the default policy, costs do not grow with the number of
    replicas or of queued requests."""

    def __init__(
        self,
        region: RegionName,
        config: PlacementConfig,
        replicas: Replicas,
        peers: Peers,
        rng: random.Random,
        *,
        plug_ins: PlugIns = no_plug_ins,
        pool_queue: PoolQueue = lambda _model, _pool: 0,
        homes: Homes = lambda: 0,
    ):
        self._config = config
        self._replicas = replicas
        self._peers = peers
        self._plug_ins = plug_ins
        self.eligibility = Eligibility(region, config, replicas, peers, pool_queue, homes=homes)
        self._fleet = Fleet(config, replicas, peers, rng, region=region)
        self._take_policy(config)
        self.engines = EngineWord(self._fleet, self._policy)

    @property
    def taking(self) -> int:
        """Mask of the replicas that the policy in force may send a request at this moment."""
        return self._replicas.pushable if self.takes_full_replicas else self._replicas.available

    @property
    def may_shadow(self) -> bool:
        """True if overflow is in shadow mode for any model."""
        return self.eligibility.may_shadow

    @property
    def replica_index(self) -> PrefixIndex:
        return self._fleet.replica_index

    @property
    def peer_index(self) -> PrefixIndex:
        return self._fleet.peer_index

    # Changes

    def configure_classes(self, free_share: float, first_token_slos_ns: dict[ServiceClass, int]) -> None:
        """Take new settings of service classes: the share of an engine's room that requests which yield leave free, and
        first-token objectives."""
        self._replicas.rooms.free_share = free_share
        self._fleet.first_token_slos_ns = first_token_slos_ns

    def configure(self, config: PlacementConfig) -> None:
        """Take new settings. Indexes are emptied only if their own bounds changed, and the policy is replaced only if
        its name or version did."""
        old, self._config = self._config, config
        self.eligibility.configure(config)
        if (old.prefix_index_bytes_max, old.prefix_ttl_ns) != (config.prefix_index_bytes_max, config.prefix_ttl_ns):
            self._fleet.empty_indexes(config)
        if (old.policy, old.policy_version) != (config.policy, config.policy_version):
            self._take_policy(config)
            self.engines.policy = self._policy
        else:
            self._policy.configure(config)

    def tell(self, name: str, fact: object) -> None:
        """Tell the policy something that a feature knows; None: it does not hold any more."""
        if fact is None:
            self._fleet.facts.pop(name, None)
        else:
            self._fleet.facts[name] = fact

    def replicas_changed(self, joined: list[ReplicaState], left: list[ReplicaState]) -> None:
        self._targets_changed(self._fleet.replica_index, joined, left)

    def peers_changed(self, joined: list[PeerState], left: list[PeerState]) -> None:
        self._targets_changed(self._fleet.peer_index, joined, left)
        self.eligibility.peers_changed()

    def _targets_changed(
        self,
        index: PrefixIndex,
        joined: Sequence[ReplicaState | PeerState],
        left: Sequence[ReplicaState | PeerState],
    ) -> None:
        for state in left:
            index.remove_target(state.slot)
            self._policy.left(state.target, state.slot)
        for state in joined:
            self._policy.joined(state.target, state.slot)

    def expire_prefixes(self, now_ns: int) -> None:
        """Forget prefixes that were not refreshed within their time to live; the cost follows the number that
        expired."""
        self._policy.expire(now_ns)
        self._fleet.replica_index.expire(now_ns)
        self._fleet.peer_index.expire(now_ns)

    def retract(self, request: RequestState, state: ReplicaState | PeerState, kept_blocks: int) -> None:
        """Undo the index entries of a forward that a peer refused: its cache never got the prompt."""
        assert state.target.kind is TargetKind.PEER, "only peers refuse"
        if not state.listed:
            return
        if self._wants_prefixes:
            self._fleet.peer_index.retract(request.profile.prefix, state.slot, kept_blocks)
        self._policy.refused(request.profile, state.target, state.slot)

    def learn_first_token(self, request: RequestState, leg: LegState, now_ns: int) -> None:
        """Note the first token of an own replica."""
        self._policy.first_token(request.profile, leg.kept_blocks, now_ns - leg.started_ns)
        if leg.state.listed:
            self._policy.prefilled(leg.state.slot, leg.uncached_bytes, leg.started_ns, now_ns)
            self._replicas.read_ns_per_byte = max(READ_NS_PER_BYTE, round(_READ_MARGIN * self._policy.byte_ns()))

    def leg_ended(self, request: RequestState, leg: LegState, event: LegEnded, now_ns: int) -> None:
        if event.result in _UNREAD and leg.state.listed:
            self._withdraw(request, leg)
        if leg.target.kind is not TargetKind.REPLICA or not leg.state.listed:
            return
        self._policy.ended(leg.state.slot, now_ns)
        is_whole_answer = request.profile.stream and leg.role is not LegRole.DECODE
        if is_whole_answer and leg.first_token_ns is not None and event.result is LegResult.COMPLETED:
            self._policy.written(now_ns - leg.first_token_ns)
        if event.prompt_tokens and event.output_tokens is not None:
            self._policy.answered(request.profile, event.prompt_tokens, event.output_tokens)

    def _withdraw(self, request: RequestState, leg: LegState) -> None:
        """Take a refused prompt out of the indexes: an engine that answers 4xx has not prefilled it."""
        profile, state = request.profile, leg.state
        if self._wants_prefixes:
            is_ours = leg.target.kind is TargetKind.REPLICA
            index = self._fleet.replica_index if is_ours else self._fleet.peer_index
            index.withdraw(profile.prefix, state.slot, leg.kept_blocks)
        self._policy.unread(profile, state.target, state.slot, leg.kept_blocks)

    def held(self, hold: Hold) -> None:
        self._policy.held(hold)

    def unheld(self, hold: Hold) -> None:
        self._policy.unheld(hold)

    def match_exactly(self, exact_match: ExactMatch) -> None:
        """Match by a simulation's exact view of the replicas' caches instead of the index."""
        self._fleet.exact_match = exact_match

    def match_told(self, told_match: ToldMatch | None) -> None:
        """Match peers by what they tell of their replicas' caches, too; None: by forwards alone."""
        self._fleet.told_match = told_match

    # Questions

    def has_target(self, request_class: RequestClass) -> bool:
        """Return true if any target is available for this class at this moment."""
        eligibility = self.eligibility
        if request_class.pinned is not None:
            return eligibility.pinned_target(request_class, takes_full=self.takes_full_replicas) is not None
        if request_class.fit is not None and eligibility.spill_replicas(request_class):
            return True
        if self._offers_full and eligibility.open_replicas(request_class):
            return True
        return bool(
            eligibility.available_replicas(request_class)
            or eligibility.available_siblings(request_class)
            or eligibility.available_remotes(request_class)
        )

    def has_replica(self, request_class: RequestClass) -> bool:
        """Return true if an own replica is available for this class at this moment."""
        eligibility = self.eligibility
        return bool(eligibility.available_replicas(request_class) or eligibility.spill_replicas(request_class))

    def position_of(self, request_class: RequestClass, queue_length: int, origin: GatewayId) -> tuple[int, float]:
        """Place of one more forward among the requests that wait for a slot here (0 or less: a slot is free for it, or
        would be given to it), and the largest place that its origin may count on (`Peers.ahead_max`)."""
        eligible = self.eligibility.eligible_replicas(request_class)
        position = queue_length + 1 - self._replicas.rooms.total(eligible & self.taking)
        if position > 0 and request_class.goes_first:
            position -= self._replicas.rooms.yielding(eligible & self.taking & self._replicas.giving)
        return position, self._peers.ahead_max(
            origin, self._replicas.rooms.release_ns(eligible & self._replicas.pushable)
        )

    def can_ever_reach(self, request_class: RequestClass) -> bool:
        """Return true if the pinned target is still known and the residency rule allows it."""
        return self.eligibility.can_ever_reach(request_class)

    def may_ever_serve(self, request_class: RequestClass, barred_peers: int = 0) -> bool:
        """Return true if there is a target to wait for, even if down or full."""
        return self.eligibility.may_ever_serve(request_class, barred_peers)

    def serves_now(self, request_class: RequestClass) -> bool:
        """Return true if a target is reachable, even if full."""
        return self.eligibility.serves_now(request_class)

    def rooms(self, request_class: RequestClass) -> dict[Target, int]:
        """Number of requests of the class that each available target could begin at once."""
        return self.eligibility.rooms(request_class)

    def batch_rooms(self, request_class: RequestClass) -> dict[RegionName, int]:
        """Requests of class `batch` that could run at once beside what runs, by each region that may serve them."""
        return self.eligibility.batch_rooms(request_class)

    def known_share(self, request: RequestState) -> float:
        """Largest share of the prompt, 0 to 1, that an own replica available to the request has; for a held request,
        that of the replica it waits for."""
        held, profile = request.held, request.profile
        mask = self.eligibility.available_replicas(request.request_class) if held is None else 1 << held.slot
        if not mask:
            return 0.0
        return share_of(profile, self._fleet.match_replicas(profile, mask).blocks)

    def replicas_to_wait_for(self, request_class: RequestClass) -> int:
        return self.eligibility.eligible_replicas(request_class)

    def peers_to_wait_for(self, request_class: RequestClass) -> int:
        return self.eligibility.peers_to_wait_for(request_class)

    def reading_again_ns(self, uncached_bytes: int) -> float:
        """Policy's estimate of the time in which a replica prefills again what this much of a prompt evicts."""
        return self._policy.reading_again_ns(uncached_bytes)

    def place(self, request: RequestState, now_ns: int) -> Placement | Hold | None:
        """Choose a target and remember the prefix there. None: the request waits for any; Hold: for one replica."""
        wanted = request.request_class
        self._fleet.goes_first, fit = wanted.goes_first and not request.leaves_room, wanted.fit
        self._fleet.fit = fit
        if wanted.pinned is not None:
            return self._place_pinned(request, now_ns)
        placement = self._weigh(request, now_ns)
        if fit is None:
            return placement
        if isinstance(placement, Placement):
            is_ours = placement.state.target.kind is TargetKind.REPLICA
            placement.step = PoolStep.PREFERRED if is_ours else PoolStep.REMOTE
            return placement
        return self._spill(request, now_ns) or placement

    def _spill(self, request: RequestState, now_ns: int) -> Placement | None:
        """Place the request in another pool of this gateway, if that pool is so free that the request need not wait
        there."""
        mask = self._sparing(request, self.eligibility.spill_replicas(request.request_class))
        if not mask:
            return None
        is_gone = self.eligibility.is_gone(request.request_class)
        offer = Offer(mask)
        offer.ready, offer.arrived_ns = mask & self._replicas.pushable, request.arrived_ns
        choice = self._policy.weigh(request.profile, offer, now_ns)
        if choice is None or choice.hold is not None:
            return None
        placement = self._settle(request, self._chosen(choice, offer), now_ns, choice)
        placement.step = PoolStep.STOOD_IN if is_gone else PoolStep.SPILLED
        return placement

    def shadow(self, request: RequestState, now_ns: int) -> Placement | None:
        """Return the placement that the request would get if overflow were on instead of in shadow mode; no prefix is
        remembered and no hold made. A policy that takes full replicas is asked before the real placement, which changes
        costs; any other policy is asked once the request has to wait."""
        wanted = request.request_class
        if not (remotes := self.eligibility.shadow_remotes(wanted)):
            return None
        self._fleet.fit, self._fleet.goes_first = wanted.fit, wanted.goes_first and not request.leaves_room
        offer = self._offer(request, remotes) if self.takes_full_replicas else Offer(0, remotes=remotes)
        choice = self._policy.weigh(request.profile, offer, now_ns)
        if choice is None or not choice.is_peer or not remotes >> choice.slot & 1:
            return None
        return self._placement(request, self._chosen(choice, offer), choice)

    def _weigh(self, request: RequestState, now_ns: int) -> Placement | Hold | None:
        """Ask the policy to compare all targets and waiting. A request that yields never holds a replica: it takes an
        idle target, or waits for any room without barring others."""
        is_yielding = request.request_class.service_class is not ServiceClass.INTERACTIVE or request.leaves_room
        remotes = self.eligibility.available_remotes(request.request_class)
        if remotes and request.leaves_room:
            remotes = self.eligibility.peers_with_room(remotes, request.request_class)
        offer = self._offer(request, remotes)
        if not (offer.replicas or offer.siblings or offer.remotes):
            return None
        choice = self._policy.weigh(request.profile, offer, now_ns)
        if choice is not None and choice.hold is not None and is_yielding:
            offer = self._idle_of(offer)
            choice = self._policy.weigh(request.profile, offer, now_ns) if offer.count() else None
        if choice is None or choice.hold is not None:
            return None if choice is None or is_yielding else choice.hold
        return self._settle(request, self._chosen(choice, offer), now_ns, choice)

    def _idle_of(self, offer: Offer) -> Offer:
        """Return the offer with only the idle ones of the own replicas."""
        idle = Offer(self._replicas.idle(offer.replicas), siblings=offer.siblings, remotes=offer.remotes)
        idle.ready, idle.free = idle.replicas & offer.ready, idle.replicas & offer.free
        idle.arrived_ns, idle.awaited = offer.arrived_ns, offer.awaited
        return idle

    def _offer(self, request: RequestState, remotes: int) -> Offer:
        request_class, eligibility = request.request_class, self.eligibility
        if request.leaves_room:
            replicas = self._sparing(request, eligibility.available_replicas(request_class))
        else:
            replicas = eligibility.open_replicas(request_class)
        siblings = eligibility.available_siblings(request_class)
        if siblings and request.leaves_room:
            siblings = eligibility.peers_with_room(siblings, request_class)
        offer = Offer(replicas, siblings=siblings, remotes=remotes)
        offer.ready, offer.free = replicas & self._replicas.pushable, replicas & self._replicas.available
        offer.held, offer.arrived_ns = request.held, request.arrived_ns
        if request_class.is_patient:
            offer.awaited = eligibility.eligible_replicas(request_class), eligibility.peers_to_wait_for(request_class)
        return offer

    def _sparing(self, request: RequestState, mask: int) -> int:
        """Available replicas of the mask that the request may have without leaving others short."""
        return self.eligibility.with_room(mask, request.request_class) if request.leaves_room else mask

    def _chosen(self, choice: Choice, offer: Offer) -> _Found:
        if choice.candidates < 0:
            choice.candidates = offer.count()
        reason = choice.reason or PlacementReason.LOCAL_POLICY
        if choice.is_peer:
            offered = offer.siblings | offer.remotes
            assert offered >> choice.slot & 1, f"{self._config.policy} chose a gateway that it was not offered"
            return self._peers.at(choice.slot), reason, choice.matched_blocks
        offered = offer.ready if self.takes_full_replicas else offer.replicas
        assert offered >> choice.slot & 1, f"{self._config.policy} chose a replica that it was not offered"
        return self._replicas.at(choice.slot), reason, choice.matched_blocks

    def _place_pinned(self, request: RequestState, now_ns: int) -> Placement | Hold | None:
        """Place the request at its only possible target once that is free; requests whose turn it is go first."""
        request_class = request.request_class
        state = self.eligibility.pinned_target(request_class, takes_full=self.takes_full_replicas)
        if state is None:
            return None
        takes_turns = self.takes_full_replicas and not request_class.is_control
        if takes_turns and state.target.kind is TargetKind.REPLICA:
            offer = Offer(1 << state.slot)
            offer.ready = offer.replicas & self._replicas.pushable
            offer.held, offer.arrived_ns = request.held, request.arrived_ns
            hold = self._policy.hold_pinned(request.profile, offer, state.slot)
            if hold is not None or not offer.ready:
                return hold
        self._policy.follows(request.arrived_ns, now_ns)
        choice = Choice(state.slot)
        choice.candidates = 1
        return self._settle(request, (state, PlacementReason.STORED_RESPONSE, 0), now_ns, choice)

    def _settle(self, request: RequestState, found: _Found, now_ns: int, choice: Choice) -> Placement:
        state, _, matched_blocks = found
        placement = self._placement(request, found, choice)
        self._policy.sent(request.profile, state.target, state.slot, matched_blocks)
        if self._wants_prefixes:
            fleet = self._fleet
            index = fleet.replica_index if state.target.kind is TargetKind.REPLICA else fleet.peer_index
            profile = request.profile
            if profile.hints is NO_HINTS:
                index.insert(profile.prefix, state.slot, now_ns)
            else:
                _insert_hinted(index, profile, state.slot, now_ns)
        return placement

    def _placement(self, request: RequestState, found: _Found, choice: Choice) -> Placement:
        state, reason, matched_blocks = found
        seen = self._considered(request, state, choice) if self._config.considered_max else ()
        return Placement(state, reason, matched_blocks, choice.candidates, seen, uncached_bytes=choice.uncached_bytes)

    # Record

    def _considered(
        self, request: RequestState, chosen: ReplicaState | PeerState, choice: Choice
    ) -> tuple[Candidate, ...]:
        """Candidates for the record: the chosen target, then replicas and peers, half of the room each. The replicas
        are those that the policy compared, with these costs, or the least loaded ones where it compared fewer."""
        room = self._config.considered_max - 1
        is_replica = chosen.target.kind is TargetKind.REPLICA
        if is_replica and len(self._replicas) == 1 and not self._peers and not self._replicas.groups.ask_origins:
            return (self._replica_candidate(request, self._replicas.at(chosen.slot), choice),)
        for_replicas = room - min(len(self._peers), room // 2)
        few = [each.slot for each in choice.replicas]
        if len(few) <= for_replicas:
            eligible = self.eligibility.eligible_replicas(request.request_class)
            few = self._replicas.few_least_loaded(eligible, for_replicas + 1)
        replicas = [state for state in map(self._replicas.at, few) if state is not chosen][:for_replicas]
        closed = self._closed(request, for_replicas - len(replicas)) if self._replicas.groups.ask_origins else ()
        peers = [state for state in self._peers if state is not chosen][: room - len(replicas) - len(closed)]
        if is_replica:
            replicas.insert(0, self._replicas.at(chosen.slot))
        else:
            peers.insert(0, self._peers.at(chosen.slot))
        here = [self._replica_candidate(request, state, choice) for state in replicas]
        available = self.eligibility.available_peers(request.request_class) if peers else 0
        there = [self._peer_candidate(request, state, choice, available) for state in peers]
        if is_replica:
            return (*here, *there, *closed)
        return (there[0], *here, *there[1:], *closed)

    def _closed(self, request: RequestState, room: int) -> tuple[Candidate, ...]:
        """Replicas that would have served the request, had it arrived elsewhere."""
        few = self._replicas.few_least_loaded(self.eligibility.closed_replicas(request.request_class), room)
        seen = [self._replica_candidate(request, self._replicas.at(slot), None) for slot in few]
        return tuple([replace(each, standing=Standing.NOT_ALLOWED) for each in seen])

    def _replica_candidate(self, request: RequestState, state: ReplicaState, choice: Choice | None) -> Candidate:
        failed = request.request_class.failed_replicas >> state.slot & 1
        standing = Standing.FAILED_BEFORE if failed else state.standing
        weighed = None if choice is None else _weighed_at(choice.replicas, state.slot)
        costs: Costs | None = None
        if weighed is not None:
            matched, costs = weighed.blocks, weighed.costs()
        else:
            matched = self._fleet.match_replicas(request.profile, 1 << state.slot).blocks
            if self._compares_costs(request):
                costs = self._policy.costs_at_replica(request.profile, state.slot, request.held, matched)
        if self.engines.match is not None:
            costs = self.engines.on_record(request.profile, state.slot, costs)
        return Candidate(state.target, standing, matched, state.load, 0, costs)

    def _peer_candidate(self, request: RequestState, state: PeerState, choice: Choice, available: int) -> Candidate:
        request_class, slot = request.request_class, state.slot
        standing = Standing.FAILED_BEFORE if request_class.failed_peers >> slot & 1 else Standing.AVAILABLE
        if standing is Standing.AVAILABLE and not available >> slot & 1:
            standing = self._peers.standing_of(state, request_class)
        load, weighed = self._fleet.peer_load(slot, request_class.model), _weighed_at(choice.peers, slot)
        if weighed is not None:
            matched, costs = weighed.blocks, weighed.costs()
        else:
            matched = self._fleet.match_peers(request.profile, 1 << slot).blocks
            costs = None
            if self._compares_costs(request):
                costs = self._policy.costs_at_peer(request.profile, slot, matched)
        told = 0 if self._fleet.told_match is None else self._fleet.told_blocks(request.profile, slot)
        if told and costs is not None:
            costs = replace(costs, further=(*costs.further, Figure(TOLD_BLOCKS, told, "blocks")))
        return Candidate(state.target, standing, matched, load, state.rtt_ns, costs)

    def _compares_costs(self, request: RequestState) -> bool:
        """Return false if only one target was possible: the policy was not asked about costs elsewhere."""
        return request.request_class.pinned is None

    # Internals

    def _take_policy(self, config: PlacementConfig) -> None:
        """Begin with the policy that the config names, and report all present targets to it."""
        factory: PolicyFactory = BUILT_IN.get(config.policy) or self._plug_ins(config.policy)
        self._policy = factory(self._fleet, config)
        self.takes_full_replicas = self._peers.weighs_waits = self._policy.takes_full_replicas()
        self._offers_full = self.takes_full_replicas or (
            isinstance(self._policy, Layered) and self._policy.falls_back_to_full()
        )
        self._wants_prefixes = self._policy.wants_prefixes()
        for replica in self._replicas:
            self._policy.joined(replica.target, replica.slot)
        for peer in self._peers:
            self._policy.joined(peer.target, peer.slot)


def _insert_hinted(index: PrefixIndex, profile: RequestProfile, slot: int, now_ns: int) -> None:
    """Record a prompt for the slot with its client's expectations. A beginning that comes again is kept even if the
    session ends, as others begin with it, too. The end of a session takes nothing from what was recorded before."""
    hints, chain = profile.hints, profile.prefix
    known_blocks = index.match(chain, 1 << slot).blocks if hints.ends_session else 0
    index.insert(chain, slot, now_ns)
    if hints.comes_again:
        index.spare(chain, slot)
    elif hints.ends_session:
        index.release(chain, slot, known_blocks)


def _weighed_at(weighed: list[Weighed], slot: int) -> Weighed | None:
    for each in weighed:
        if each.slot == slot:
            return each
    return None
