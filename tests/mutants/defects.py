"""Defects of the gateway's core: each is a function that replaces one of the core's and is wrong in one way.

Nothing runs them here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as with_fields

from gateway.core.features.cache_digests.changes import Batch, DigestChanges
from gateway.core.features.cache_digests.events import DigestPart
from gateway.core.features.cache_digests.feature import CacheDigests
from gateway.core.features.cache_digests.holdings import Group, Holdings
from gateway.core.features.cache_digests.telling import ByteBudget
from gateway.core.features.cache_digests.told import ToldDigest
from gateway.core.features.classes.interruptions import Interruptions
from gateway.core.features.kv_events.engine_cache import Answer, EngineCache
from gateway.core.features.kv_events.events import CacheChange, CacheTier, ChangeKind, EngineTold
from gateway.core.features.kv_events.feature import KvEvents
from gateway.core.features.kv_events.tie import Tie
from gateway.core.features.prices.policy import Price
from gateway.core.features.resume.feature import Resume
from gateway.core.features.sharing.fair_queue import FairOrder
from gateway.core.features.sharing.fair_shares import Account, Charge, FairShares
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.admission import Admission
from gateway.core.kernel.attempts import Breaker
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.legs import Legs
from gateway.core.kernel.peers import Peers, PeerState
from gateway.core.kernel.placing import Placing
from gateway.core.kernel.queues import ArrivalQueue, QueueOrder, Turn
from gateway.core.kernel.reevaluation import Reevaluation
from gateway.core.kernel.replica_groups import ReplicaGroups
from gateway.core.kernel.replicas import Replicas, ReplicaState
from gateway.core.kernel.request_class import RequestClass
from gateway.core.kernel.requests import AttemptState, Hold, LegEnd, LegState, Phase, RequestState, Size
from gateway.core.kernel.residency import ResidencyPolicy, Verdict
from gateway.core.kernel.retries import Retries
from gateway.core.kernel.slots import GIVEN_SLOT_NS, EngineSlots
from gateway.core.kernel.spare_capacity import SpareCapacity
from gateway.core.kernel.state import GatewayState
from gateway.core.kernel.take_backs import TakeBacks
from gateway.core.kernel.waiting_requests import WaitingRequests
from gateway.core.placement.cost import CostPolicy
from gateway.core.placement.eligibility import Eligibility
from gateway.core.placement.fleet import Fleet
from gateway.core.placement.holds import Holds
from gateway.core.placement.placer import Placement, Placer
from gateway.core.placement.policy import Offer
from gateway.core.vocabulary import (
    Hops,
    LegResult,
    LegRole,
    LoadReport,
    ModelCapacity,
    ModelName,
    NeededIdentity,
    Outcome,
    Place,
    PlacementReason,
    PlaceRule,
    ReplicaObservation,
    ReplicaSpec,
    RequestId,
    RequestProfile,
    ServiceClass,
    Standing,
    Target,
    TenantName,
)
from loadgen.simulator.chaos import ChaosKind
from tests.mutants import controller_defects
from tests.mutants.seams import Mutant, Original

MUTANTS: dict[str, Mutant] = dict(controller_defects.MUTANTS)
_AGES_NS = 300_000_000_000
_CORE_TESTS = "tests/unit/gateway/core"


def mutant(
    what: str, seam: str, *, hunter: str = "", kind: ChaosKind = ChaosKind.MESH
) -> Callable[[Original], Original]:
    """Register a function to replace the one at a seam of the core, as a mutant named after the function."""

    def register(mutated: Original) -> Original:
        assert mutated.__name__ not in MUTANTS, f"two mutants are called {mutated.__name__}"
        MUTANTS[mutated.__name__] = Mutant(what, f"gateway.core.{seam}", mutated, hunter, kind)
        return mutated

    return register


# Targets that a request may use


@mutant("replicas in regions that the policy forbids are used", "kernel.replica_groups:ReplicaGroups.eligible")
def replicas_anywhere(
    original: Original,
    groups: ReplicaGroups,
    model: ModelName,
    rule: PlaceRule,
    origin: Place | None = None,
    **more: Any,
) -> int:
    anywhere = PlaceRule(regions=frozenset(place.region for (_, _, place, *_), _ in groups.told()))
    return int(original(groups, model, anywhere, origin, **more))


@mutant(
    "an adopted replica takes what arrived where its home does not accept",
    "kernel.replica_groups:_takes_from",
    hunter=f"{_CORE_TESTS}/kernel/test_admission.py::TestAdoptedReplicas",
)
def taken_from_anywhere(original: Original, origin: Place | None, accepts: PlaceRule | None) -> bool:
    return True


@mutant(
    "a stored response at an adopted replica is read from anywhere",
    "placement.eligibility:Eligibility._may_take",
    hunter=f"{_CORE_TESTS}/kernel/test_admission.py::TestAdoptedReplicas",
)
def stored_for_anybody(original: Original, eligibility: Eligibility, spec: ReplicaSpec, wanted: RequestClass) -> bool:
    return wanted.rule.allows(spec.place)


@mutant(
    "peers are promised adopted replicas that would not take what they forward",
    "vocabulary:LoadReport.told_to",
    hunter=f"{_CORE_TESTS}/kernel/test_admission.py::TestAdoptedReplicas",
)
def promised_to_anybody(original: Original, report: LoadReport, place: Place | None) -> LoadReport:
    return report


@mutant("a tenant's own rule is ignored", "kernel.residency:processing_rule")
def one_rule_for_all(original: Original, policy: ResidencyPolicy, tenant: TenantName) -> PlaceRule:
    return policy.process


@mutant("anybody's overflow is taken in", "kernel.residency:may_accept")
def accepts_anybody(original: Original, policy: ResidencyPolicy, origin: Place) -> Verdict:
    return Verdict(not policy.closed_reason, original(policy, origin).why)


@mutant("a region without a usable policy goes on forwarding", "kernel.admission:Admission.class_of")
def forwards_when_closed(
    original: Original,
    admission: Admission,
    profile: RequestProfile,
    rule: PlaceRule,
    hops: Hops,
    *origin: Place | None,
    size: Size | None = None,
) -> RequestClass:
    request_class = original(admission, profile, rule, hops, *origin, size=size)
    return _opened(request_class, hops, is_open=admission._core.forwarding_stop is None)


@mutant("forwarding goes on in lockdown", "kernel.admission:Admission.class_of")
def forwards_in_lockdown(
    original: Original,
    admission: Admission,
    profile: RequestProfile,
    rule: PlaceRule,
    hops: Hops,
    *origin: Place | None,
    size: Size | None = None,
) -> RequestClass:
    request_class = original(admission, profile, rule, hops, *origin, size=size)
    return _opened(request_class, hops, is_open=not admission._core.policy.closed_reason)


def _opened(request_class: RequestClass, hops: Hops, *, is_open: bool) -> RequestClass:
    return replace(
        request_class,
        may_stay_in_region=is_open and hops.may_stay_in_region,
        may_cross_regions=is_open and hops.may_cross_regions,
    )


@mutant("what goes on from a stored response goes anywhere", "placement.placer:Placer.place")
def follows_nothing(original: Original, placer: Placer, request: RequestState, now_ns: int) -> Placement | None:
    pinned, request.request_class = request.request_class, replace(request.request_class, pinned=None)
    placement: Placement | None = original(placer, request, now_ns)
    request.request_class = pinned
    return placement


@mutant("a forwarded request may be forwarded again", "vocabulary:Hops.may_cross_regions")
def crosses_again(original: Original, hops: Hops) -> bool:
    return True


# Admission, and order of service


@mutant("a gateway that goes out of service takes new requests", "kernel.admission:Admission.rejection_of")
def takes_while_draining(
    original: Original, admission: Admission, profile: RequestProfile, request_class: RequestClass
) -> tuple[Outcome, str] | None:
    rejection: tuple[Outcome, str] | None = original(admission, profile, request_class)
    return None if rejection is not None and rejection[0] is Outcome.REJECTED_DRAINING else rejection


@mutant("who came last is served first", "kernel.queues:ArrivalQueue.head")
def last_comes_first(original: Original, queue: ArrivalQueue) -> RequestState:
    *_, last = queue
    return last


@mutant("a blocked class blocks those behind it", "kernel.placing:Placing.place_waiting")
def one_blocks_all(original: Original, placing: Placing, now_ns: int) -> None:
    core = placing._core
    if placing.newcomer is not None:
        placing._queue(placing.newcomer)
        placing.newcomer = None
    while heads := core.waiting.heads():
        request = core.waiting.next_of(heads)
        placement = core.placer.place(request, now_ns)
        if placement is None or isinstance(placement, Hold):
            return
        placing._start(request, placement, now_ns)


@mutant("those who wait have no deadline", "gateway_core:GatewayCore.wait")
def waits_for_ever(original: Original, core: GatewayCore, request: RequestState, now_ns: int) -> None:
    original(core, request, now_ns)
    core.timers.cancel(request.timer)


# Requests held for a replica


@mutant("whoever is held is never looked at again", "kernel.placing:Placing._place_held")
def held_for_ever(original: Original, placing: Placing, now_ns: int) -> None:
    placing._core.replicas.changed = 0


@mutant("a request is held for a replica that has nothing to do", "placement.cost:CostPolicy._waits_better_here")
def held_for_the_idle(original: Original, policy: CostPolicy, *asked: Any) -> bool:
    return True


@mutant(
    "those who are held are overtaken without end",
    "placement.holds:Holds.lets_pass",
    hunter=f"{_CORE_TESTS}/test_gateway_core.py::TestHolding",
)
def lets_everybody_pass(original: Original, holds: Holds) -> bool:
    return True


@mutant(
    "whoever is held may overtake whoever was held before",
    "placement.holds:Holds.is_first",
    hunter=f"{_CORE_TESTS}/test_gateway_core.py::TestHolding",
)
def everybody_is_first(original: Original, holds: Holds, hold: Hold | None) -> bool:
    return hold is not None


@mutant(
    "what follows stored responses goes past all who are held",
    "placement.cost:CostPolicy.hold_pinned",
    hunter=f"{_CORE_TESTS}/features/stored_responses/test_feature.py",
)
def follows_past_everybody(
    original: Original, policy: CostPolicy, profile: RequestProfile, offer: Offer, slot: int
) -> Hold | None:
    return None


@mutant(
    "what follows stored responses in the same words counts as read already",
    "placement.cost:CostPolicy._bytes_to_read",
    hunter=f"{_CORE_TESTS}/placement/test_cost.py::TestFollowingAStoredResponse",
)
def reads_the_same_words_once(original: Original, policy: CostPolicy, profile: RequestProfile, slot: int) -> int:
    return policy._caches.uncached_bytes(profile, slot)


@mutant(
    "shadow overflow tells of whoever is cheapest abroad, be it dearer than at home",
    "placement.placer:Placer._offer",
    hunter=f"{_CORE_TESTS}/features/test_shadow.py::TestShadowByCost",
)
def shadows_the_cheapest_abroad(original: Original, placer: Placer, request: RequestState, remotes: int) -> Offer:
    offer: Offer = original(placer, request, remotes)
    if remotes != placer.eligibility.available_remotes(request.request_class):
        offer.replicas = offer.siblings = 0
    return offer


@mutant(
    "for the sake of a cache a request is held for as long as others come back",
    "placement.cost:CostPolicy._pushes_out_too_much",
)
def guards_for_ever(
    original: Original, policy: CostPolicy, profile: RequestProfile, offer: Offer, *chosen: int
) -> bool:
    arrived_ns, offer.arrived_ns = offer.arrived_ns, policy._now_ns
    is_cold = bool(original(policy, profile, offer, *chosen))
    offer.arrived_ns = arrived_ns
    return is_cold


@mutant(
    "whoever is held for a replica is held for who takes over its slot",
    "kernel.waiting_requests:WaitingRequests.release",
    hunter=f"{_CORE_TESTS}/test_gateway_core.py::TestHolding",
)
def slots_keep_who_is_held(original: Original, room: WaitingRequests, slot: int) -> list[RequestState]:
    return []


@mutant(
    "more are held than may wait",
    "kernel.admission:Admission.overfullness_for",
    hunter=f"{_CORE_TESTS}/test_gateway_core.py::TestHolding",
)
def holds_without_limit(original: Original, admission: Admission, profile: RequestProfile) -> None:
    return None


# Ends of attempts


@mutant("a late answer from an old attempt counts", "kernel.kernel:Kernel.attempt_of")
def any_attempt_will_do(original: Original, core: Kernel, request_id: RequestId, number: int) -> AttemptState | None:
    request = core.requests.get(request_id)
    return None if request is None else request.attempt


@mutant("a stream that broke off is started again", "kernel.legs:Legs._conclude")
def starts_streams_again(
    original: Original, legs: Legs, request: RequestState, attempt: AttemptState, end: LegEnd
) -> None:
    if request.phase is Phase.ANSWERING and end.result is LegResult.FAILED:
        request.phase = Phase.RUNNING
    original(legs, request, attempt, end)


@mutant("a refused forward is forgotten", "kernel.retries:Retries._try_again_after_refusal")
def forgets_the_refused(original: Original, retries: Retries, request: RequestState, end: LegEnd, now_ns: int) -> None:
    return


@mutant("a further leg is opened after its attempt is over", "kernel.retries:Retries.attempt_failed")
def one_leg_too_late(
    original: Original, retries: Retries, request: RequestState, attempt: AttemptState, now_ns: int
) -> None:
    original(retries, request, attempt, now_ns)
    if request.phase is Phase.WAITING and attempt.failures:
        there = Placement(attempt.failures[0].leg.state, PlacementReason.LOCAL_POLICY, 0, 1)
        retries._core.open_leg(request, attempt, LegRole.WHOLE, there, now_ns)


@mutant(
    "a leg that was stopped because its companion ended is held against its target",
    "kernel.legs:Legs._conclude",
    hunter=f"{_CORE_TESTS}/kernel/test_requests.py::test_whoever_fails_has_the_other_stopped_and_is_alone_to_blame",
)
def blames_the_companion(
    original: Original, legs: Legs, request: RequestState, attempt: AttemptState, end: LegEnd
) -> None:
    for leg in attempt.legs.values():
        leg.stop_detail = "its companion ended"
    original(legs, request, attempt, end)


# Replicas that are announced to leave


@mutant(
    "replicas that are announced to leave are sent requests",
    "kernel.replicas:Replicas._standing",
    kind=ChaosKind.LEAVING,
)
def sends_to_the_leaving(original: Original, replicas: Replicas, state: ReplicaState, now_ns: int) -> Standing:
    standing: Standing = original(replicas, state, now_ns)
    return Standing.AVAILABLE if standing is Standing.LEAVING else standing


@mutant(
    "a replica that comes back after it has left is still kept out",
    "kernel.replicas:Replicas.observe",
    hunter=f"{_CORE_TESTS}/features/leaving/test_feature.py::TestEndOfANotice",
)
def never_left(original: Original, replicas: Replicas, observation: ReplicaObservation, now_ns: int) -> None:
    state = replicas.get(observation.replica_id)
    leave_by_ns = None if state is None else state.leave_by_ns
    original(replicas, observation, now_ns)
    if state is not None:
        state.leave_by_ns = leave_by_ns
        replicas.refresh(state, now_ns)


# Legs at targets that fall silent


@mutant(
    "requests wait at a silent target",
    "kernel.take_backs:TakeBacks.from_silent",
    kind=ChaosKind.SILENT,
)
def waits_at_the_silent(original: Original, take_backs: TakeBacks, target: Target, detail: str, now_ns: int) -> None:
    return


@mutant(
    "legs at targets that are heard are taken back",
    "kernel.take_backs:TakeBacks.from_silent",
    kind=ChaosKind.SILENT,
)
def takes_back_what_is_heard(
    original: Original, take_backs: TakeBacks, target: Target, detail: str, now_ns: int
) -> None:
    attempts = [(each, each.attempt) for each in take_backs._core.requests.values() if each.attempt is not None]
    legs = [(request, leg) for request, attempt in attempts for leg in attempt.legs.values()]
    take_backs.from_leaving(legs, defaultdict(lambda: detail), now_ns)


@mutant(
    "a silent target's answer is taken back where it cannot go on",
    "features.resume.feature:Resume.may_append",
    hunter=f"{_CORE_TESTS}/kernel/test_take_backs.py",
)
def appends_too_often(original: Original, resume: Resume, request: RequestState) -> bool:
    return True


@mutant(
    "requests are taken back for which no other target has room",
    "placement.eligibility:Eligibility.rooms",
    kind=ChaosKind.SILENT,
)
def leaves_for_full_targets(
    original: Original, eligibility: Eligibility, request_class: RequestClass
) -> dict[Target, int]:
    return {state.target: 99 for state in (*eligibility._replicas, *eligibility._peers)}


@mutant(
    "targets of a request that is taken back are judged by the rules under which it was forwarded",
    "kernel.take_backs:TakeBacks._class_elsewhere",
    hunter=f"{_CORE_TESTS}/kernel/test_take_backs.py",
)
def goes_by_old_rules(
    original: Original, take_backs: TakeBacks, request: RequestState, leg: LegState
) -> RequestClass | None:
    return request.request_class


# Requests that give their slots away


@mutant(
    "answers that have begun are interrupted",
    "features.classes.interruptions:Interruptions.leg_answered",
    hunter=f"{_CORE_TESTS}/features/classes/test_interruptions.py",
)
def interrupts_what_has_begun(
    original: Original, interruptions: Interruptions, request: RequestState, leg: LegState, now_ns: int
) -> None:
    return


@mutant(
    "one interactive request is given every slot",
    "features.classes.interruptions:Interruptions._short_at",
    hunter=f"{_CORE_TESTS}/features/classes/test_interruptions.py",
)
def gives_every_slot(original: Original, interruptions: Interruptions, state: ReplicaState) -> int:
    return 99 if original(interruptions, state) > 0 else 0


@mutant(
    "requests are interrupted again and again",
    "features.classes.interruptions:Interruptions._may_be_interrupted",
    hunter=f"{_CORE_TESTS}/features/classes/test_interruptions.py",
)
def interrupts_for_ever(original: Original, interruptions: Interruptions, request: RequestState, now_ns: int) -> bool:
    return True


@mutant(
    "a slot that is given costs no more than a free one",
    "placement.cost:CostPolicy._slot_wait_ns",
    hunter=f"{_CORE_TESTS}/features/classes/test_interruptions.py",
)
def gives_slots_for_nothing(original: Original, policy: CostPolicy, slot: int, held: Hold | None) -> float:
    wait_ns = float(original(policy, slot, held))
    return 0.0 if policy.fleet.goes_first and wait_ns <= GIVEN_SLOT_NS else wait_ns


@mutant(
    "requests that have yielded for long are given slots like interactive ones",
    "features.classes.interruptions:_goes_first",
    hunter=f"{_CORE_TESTS}/features/classes/test_interruptions.py",
)
def gives_slots_to_the_promoted(original: Original, request: RequestState) -> bool:
    return request.request_class.service_class is ServiceClass.INTERACTIVE


@mutant(
    "a request held for the reading of a prompt is not looked at once that is taken to be over",
    "kernel.replicas:Replicas.take_as_read",
    hunter=f"{_CORE_TESTS}/features/classes/test_interruptions.py",
)
def reads_in_silence(original: Original, replicas: Replicas, state: ReplicaState, now_ns: int) -> None:
    changed = replicas.changed
    original(replicas, state, now_ns)
    replicas.changed = changed


@mutant(
    "requests that yield are load to those that go first",
    "placement.fleet:Fleet.total_load",
    hunter=f"{_CORE_TESTS}/placement/test_cost.py",
)
def counts_what_yields(original: Original, fleet: Fleet, mask: int) -> int:
    goes_first, fleet.goes_first = fleet.goes_first, False
    total = int(original(fleet, mask))
    fleet.goes_first = goes_first
    return total


@mutant(
    "a patient request waits for what it may never go to",
    "features.prices.policy:Price._can_save",
    hunter=f"{_CORE_TESTS}/features/prices/test_policy.py::TestPatientLines",
)
def waits_for_the_forbidden(
    original: Original, policy: Price, profile: RequestProfile, offer: Offer, best: object
) -> bool:
    offer.awaited = offer.awaited[0], sum(1 << each.slot for each in policy.fleet._peers)
    return bool(original(policy, profile, offer, best))


@mutant(
    "batch requests are sent to peers that would begin none",
    "kernel.peers:Peers.spare",
    hunter=f"{_CORE_TESTS}/kernel/test_spare_capacity.py",
)
def sends_where_slots_are_free(
    original: Original, peers: Peers, state: PeerState, wanted: RequestClass, *, is_idle: bool
) -> int:
    return 0 if state.report is None else sum(each.room for each in state.report.capacities)


@mutant(
    "who takes over a slot is avoided for what failed there before",
    "kernel.reevaluation:Reevaluation.find_failures_again",
    hunter=f"{_CORE_TESTS}/test_gateway_core.py::TestChangesOfTheFleet",
)
def slots_keep_failures(original: Original, reevaluation: Reevaluation) -> None:
    return


@mutant(
    "what nobody could ever serve waits for nobody",
    "kernel.feasibility:why_no_newcomer",
    hunter=f"{_CORE_TESTS}/kernel/test_feasibility.py::TestWhatNobodyCouldServe",
)
def waits_in_vain(
    original: Original, core: GatewayState, profile: RequestProfile, request_class: RequestClass
) -> tuple[Outcome, str] | None:
    never: tuple[Outcome, str] | None = original(core, profile, request_class)
    return None if never is not None and never[0] is Outcome.REJECTED_RESIDENCY_PROCESSING else never


@mutant(
    "a request is refused for good while whoever may serve it is down",
    "placement.eligibility:Eligibility.may_ever_serve",
    hunter=f"{_CORE_TESTS}/kernel/test_feasibility.py::TestWhatMayCome",
)
def waits_for_the_free_alone(
    original: Original, eligibility: Eligibility, request_class: RequestClass, barred_peers: int = 0
) -> bool:
    return bool(
        eligibility.available_replicas(request_class)
        or eligibility.available_siblings(request_class)
        or eligibility.available_remotes(request_class)
    )


@mutant(
    "whoever waits is not told that nobody can come any more",
    "kernel.reevaluation:Reevaluation.reject_hopeless",
    hunter=f"{_CORE_TESTS}/kernel/test_feasibility.py::TestJudgedAgain",
)
def never_judged_again(original: Original, reevaluation: Reevaluation) -> None:
    return


# State of targets


@mutant("a cancelled attempt is counted for ever", "kernel.targets:Targets.ended")
def counts_the_cancelled(original: Original, *ended: Any, **more: Any) -> None:
    _, state, _, result, *_ = ended
    original(*ended, **more)
    state.in_flight += result is LegResult.CANCELLED


@mutant("what was read stays in a target's backlog", "kernel.targets:Targets.first_token")
def reads_it_twice(original: Original, targets: Any, state: Any, *token: Any) -> None:
    backlog_bytes = state.backlog_bytes
    original(targets, state, *token)
    state.backlog_bytes = backlog_bytes


@mutant("a client's mistakes open the breaker", "kernel.attempts:Breaker.record")
def blames_for_clients(original: Original, breaker: Breaker, result: LegResult, *when: Any, **more: Any) -> bool:
    return bool(original(breaker, LegResult.FAILED if result is LegResult.CLIENT_ERROR else result, *when, **more))


@mutant("a peer's refusal counts as a failure", "kernel.attempts:Breaker.record")
def blames_for_refusals(original: Original, breaker: Breaker, result: LegResult, *when: Any, **more: Any) -> bool:
    return bool(original(breaker, LegResult.FAILED if result is LegResult.REFUSED else result, *when, **more))


@mutant("a replica with a pending request is pushed to", "kernel.replicas:Replicas._fullness")
def pushes_onto_pending(original: Original, replicas: Replicas, state: ReplicaState) -> Standing:
    standing: Standing = original(replicas, state)
    return Standing.AVAILABLE if standing is Standing.PENDING and state.waiting == 1 else standing


@mutant("a peer whose heartbeats change is judged by what it said before", "kernel.peers:_says_the_same")
def hears_no_change(original: Original, report: LoadReport, last: LoadReport | None) -> bool:
    return True


@mutant(
    "peers that have not been heard for long are used",
    "kernel.peers:Peers._stale_ns",
    hunter=f"{_CORE_TESTS}/test_gateway_core.py::TestOverflow::test_a_stale_peer_is_no_target",
)
def never_stale(original: Original, peers: Peers, state: PeerState) -> int:
    stale_ns: int = original(peers, state)
    return stale_ns and stale_ns + _AGES_NS


@mutant(
    "forwards that no heartbeat counts yet take no room",
    "kernel.peers:Peers._position",
    hunter=f"{_CORE_TESTS}/test_gateway_core.py::TestOverflow",
)
def forgets_its_forwards(
    original: Original, peers: Peers, state: PeerState, capacities: list[ModelCapacity], queue_length: int
) -> int:
    return int(original(peers, state, capacities, queue_length)) - len(state.unreflected)


@mutant(
    "forwards are taken without end",
    "placement.placer:Placer.position_of",
    hunter=f"{_CORE_TESTS}/kernel/test_admission.py::TestForwards",
)
def takes_all_forwards(original: Original, placer: Placer, *asked: Any) -> tuple[int, float]:
    return 0, original(placer, *asked)[1]


@mutant(
    "an answer that has begun gets its turn like a new request",
    "kernel.queues:QueueOrder.turn",
    hunter=f"{_CORE_TESTS}/kernel/test_placing.py",
)
def begun_is_new(original: Original, order: QueueOrder, request: RequestState) -> Turn:
    rank, _, *turn = original(order, request)
    return (rank, True, *turn)


@mutant(
    "at a peer new requests that wait are ahead of an answer that has begun",
    "kernel.peers:Peers.standing_for",
    hunter=f"{_CORE_TESTS}/kernel/test_placing.py",
)
def new_ones_ahead_there(original: Original, *asked: Any, appends: bool = False, **more: Any) -> Standing:
    return Standing(original(*asked, **more))


@mutant(
    "new requests that wait bar forwards of answers that have begun",
    "kernel.waiting_requests:WaitingRequests.length_before",
    hunter=f"{_CORE_TESTS}/kernel/test_admission.py::TestForwards",
)
def new_ones_before(original: Original, waiting: WaitingRequests, wanted: RequestClass) -> int:
    return int(original(waiting, replace(wanted, appends=False)))


@mutant(
    "a new request overtakes an answer that has begun and is held for the replica",
    "placement.cost:CostPolicy._waits_better_here",
    hunter=f"{_CORE_TESTS}/kernel/test_placing.py",
)
def overtakes_begun(
    original: Original, policy: CostPolicy, profile: RequestProfile, offer: Offer, slot: int, *asked: int
) -> bool:
    holds = policy._books[slot].holds
    count, holds.count_appending = holds.count_appending, 0
    waits = bool(original(policy, profile, offer, slot, *asked))
    holds.count_appending = count
    return waits


@mutant(
    "a prompt that is being read teaches how many slots there are",
    "kernel.slots:EngineSlots.observe",
    hunter=f"{_CORE_TESTS}/kernel/test_slots.py",
)
def learns_from_reading(original: Original, slots: EngineSlots, running: int, waiting: int, **told: Any) -> None:
    original(slots, running, waiting, **{**told, "unread": 0})


@mutant(
    "a session that leaves takes the way once",
    "placement.cost:CostPolicy._distance_ns",
    hunter=f"{_CORE_TESTS}/placement/test_cost.py",
)
def goes_and_comes_once(original: Original, cost: CostPolicy, profile: RequestProfile, slot: int, load: float) -> float:
    return 2 * cost._delay_weight * cost.fleet.peer_rtt_ns(slot)


# Model identities


@mutant(
    "an answer goes on with another model of the same name",
    "vocabulary:NeededIdentity.takes",
    kind=ChaosKind.MIXED_MODELS,
)
def takes_any_identity(original: Original, needed: NeededIdentity, identity: str) -> bool:
    return True


@mutant(
    "the rest of an answer forgets which model began it",
    "kernel.model_identity:bound",
    kind=ChaosKind.MIXED_MODELS,
)
def binds_no_rest(
    original: Original, core: GatewayState, request: RequestState, profile: RequestProfile, end: LegEnd
) -> RequestProfile:
    return profile


@mutant(
    "a request fails over to any model of its name",
    "kernel.retries:Retries._bind",
    kind=ChaosKind.MIXED_MODELS,
)
def fails_over_unbound(original: Original, retries: Retries, request: RequestState, end: LegEnd) -> None:
    return


# Fair sharing of queues


@mutant(
    "tenants who share are served first come, first served",
    "features.sharing.fair_queue:FairOrder.turn",
    hunter=f"{_CORE_TESTS}/features/sharing/test_fair_queue.py",
)
def nobody_shares(original: Original, order: FairOrder, request: RequestState) -> Turn:
    return QueueOrder.turn(order, request)


@mutant(
    "whoever idles saves up",
    "features.sharing.fair_shares:FairShares._lift",
    hunter=f"{_CORE_TESTS}/features/sharing/test_fair_shares.py::TestIdling",
)
def saves_up(original: Original, shares: FairShares, account: Account) -> None:
    return


@mutant(
    "what is tried again is charged again",
    "features.sharing.fair_shares:FairShares.started",
    hunter=f"{_CORE_TESTS}/features/sharing/test_fair_shares.py",
)
def charges_again(
    original: Original, shares: FairShares, charge: Charge, profile: RequestProfile, prompt_tokens: int
) -> None:
    shares._charge(charge, charge.input_tokens + max(1, prompt_tokens or profile.prompt_bytes // 4), 0)
    charge.is_counted = True


@mutant(
    "who yields goes where there is no room",
    "kernel.spare_capacity:SpareCapacity.replicas_with_room",
    hunter=f"{_CORE_TESTS}/kernel/test_spare_capacity.py",
)
def yields_to_nobody(original: Original, spare: SpareCapacity, mask: int, request_class: RequestClass) -> int:
    return mask


# Cache digests

_DIGESTS = f"{_CORE_TESTS}/features/cache_digests"
_TELLING = f"{_DIGESTS}/test_feature.py::TestTelling"


@mutant("a digest goes to every region", "features.cache_digests.telling:may_be_told", hunter=_TELLING)
def told_everywhere(original: Original, group: Group, policy: ResidencyPolicy, place: Place) -> bool:
    return True


@mutant(
    "a digest forgets the stamp under which a prompt came",
    "features.cache_digests.telling:may_be_told",
    hunter=_TELLING,
)
def told_without_stamp(original: Original, group: Group, policy: ResidencyPolicy, place: Place) -> bool:
    tenant, _ = group
    return bool(original((tenant, (place,)), policy, place))


@mutant(
    "peers are not told what a replica no longer holds",
    "features.cache_digests.changes:DigestChanges.after",
    hunter=_TELLING,
)
def removes_nothing(original: Original, changes: DigestChanges, *details: Any) -> Batch:
    batch: Batch = original(changes, *details)
    batch.removed = []
    return batch


@mutant(
    "a digest with a gap is believed", "features.cache_digests.told:ToldDigest.hear", hunter=f"{_DIGESTS}/test_told.py"
)
def believes_gaps(original: Original, told: ToldDigest, part: DigestPart, *details: Any) -> None:
    original(told, DigestPart(part.is_first, told.version, part.to_version, part.added, part.removed), *details)


@mutant(
    "a peer may tell without bound",
    "features.cache_digests.told:ToldDigest.hear",
    hunter=f"{_DIGESTS}/test_told.py",
)
def told_without_bound(original: Original, told: ToldDigest, part: DigestPart, now_ns: int, _: int) -> None:
    original(told, part, now_ns, 1 << 60)


@mutant(
    "digests are sent however much was sent before",
    "features.cache_digests.telling:ByteBudget.spend",
    hunter=_TELLING,
)
def spends_nothing(original: Original, budget: ByteBudget, count: int) -> None:
    return


@mutant(
    "a cache holds all it was ever sent",
    "features.cache_digests.holdings:Holdings.record",
    hunter=_TELLING,
)
def caches_without_end(original: Original, holdings: Holdings, *details: Any, blocks_max: int) -> None:
    original(holdings, *details, blocks_max=0)


@mutant(
    "what failed replicas held is told on",
    "features.cache_digests.feature:CacheDigests._forget",
    hunter=_TELLING,
)
def remembers_the_dead(original: Original, digests: CacheDigests, replica_id: str) -> None:
    return


@mutant(
    "a peer's word counts for what every region knows",
    "placement.fleet:Fleet._told",
    hunter=f"{_DIGESTS}/test_feature.py::TestPlacing",
)
def believes_peers_first(original: Original, fleet: Fleet, profile: RequestProfile, slot: int) -> int:
    return 0 if fleet.told_match is None else fleet.told_match(profile, slot)


# KV events

_KV_EVENTS = f"{_CORE_TESTS}/features/kv_events"


@mutant(
    "a cleared cache is believed to hold what it held",
    "features.kv_events.feature:KvEvents._hear",
    hunter=f"{_KV_EVENTS}/test_feature.py",
)
def clears_nothing(original: Original, kv_events: KvEvents, event: EngineTold, now_ns: int) -> None:
    kept = tuple([each for each in event.changes if each.kind is not ChangeKind.CLEARED])
    original(kv_events, with_fields(event, changes=kept), now_ns)


@mutant(
    "a block is gone once one memory of several has removed it",
    "features.kv_events.engine_cache:EngineCache.remove",
    hunter=f"{_KV_EVENTS}/test_engine_cache.py::TestRemovals",
)
def removed_from_all_memories(original: Original, cache: EngineCache, change: CacheChange) -> Any:
    return [each for tier in CacheTier for each in original(cache, with_fields(change, tier=tier))]


@mutant(
    "of two answers of one length, the first gets the blocks",
    "features.kv_events.engine_cache:EngineCache._may_end_with",
    hunter=f"{_KV_EVENTS}/test_engine_cache.py::TestTies",
)
def ties_the_first(original: Original, cache: EngineCache, last: Any, answer: Answer) -> bool:
    return False


@mutant(
    "a prompt is untied and its holders stay",
    "features.kv_events.engine_cache:EngineCache._untie",
    kind=ChaosKind.KV_EVENTS,
)
def keeps_holders(original: Original, cache: EngineCache, block: Any, tie: Tie) -> None:
    original(cache, block, tie)
    tie.holders += 1
