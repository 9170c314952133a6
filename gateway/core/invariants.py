"""Invariants that must hold after every event of a gateway core, and their checker. Tests and the simulator call it; it
changes nothing."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct, field

from gateway.core.events import Event
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.config import IdentityRule, OverflowMode
from gateway.core.kernel.effects import AcceptForward, Effect, EndRequest, StartLeg, TakeBackLeg
from gateway.core.kernel.events import (
    AssignmentApplied,
    FirstToken,
    ForwardArrived,
    LegEnded,
    ReplicasObserved,
    RequestArrived,
    TargetLost,
)
from gateway.core.kernel.peers import PeerState
from gateway.core.kernel.replicas import ReplicaState
from gateway.core.kernel.request_class import RequestClass
from gateway.core.kernel.requests import Hold, LegState, Phase, RequestState
from gateway.core.vocabulary import (
    LegResult,
    LegRole,
    Outcome,
    PeerSpec,
    Place,
    PlaceRule,
    PoolName,
    PoolSpec,
    RefusalReason,
    ReplicaRole,
    ReplicaSpec,
    RequestId,
    RequestProfile,
    ServiceClass,
    Standing,
    Target,
    TargetKind,
)

_MAY_BE_FAILURES = frozenset({LegResult.FAILED, LegResult.CANCELLED})
"""Results that may count as a failure of the target: a leg that the core stopped for what it did not do ends as
cancelled."""
_LEFT_BEHIND = frozenset({LegResult.FAILED, LegResult.TAKEN_BACK})
"""Results of targets that may have begun what another one does instead."""
_RESIDENCY_REFUSALS = frozenset({RefusalReason.RESIDENCY_NOT_ACCEPTED, RefusalReason.RESIDENCY_STAMP})
"""Residency refusals, written out rather than taken from the core: the checker must not share an error of the core."""


_ROLES = {
    LegRole.WHOLE: ReplicaRole.UNIFIED,
    LegRole.PREFILL: ReplicaRole.PREFILL,
    LegRole.DECODE: ReplicaRole.DECODE,
}
_NO_LIMIT = 1 << 62
_FEW_REQUESTS = 32
"""Open requests below which all of the state is checked after every event. With n times as many it is checked after
every n + 1 events, so that a check costs as much on average however many there are."""
_ESTIMATES_MOVE = 2
"""Factor by which a cache estimate may have been larger when a hold was decided: other requests placed at the same
event change it."""


class Violation(Struct, frozen=True):
    """Broken invariant, and what was seen."""

    invariant: str
    detail: str


class _Story(Struct):
    """History of one request, as told by events and effects alone."""

    rule: PlaceRule
    origin: Place
    """Place where the request arrived."""
    attempt: int = 0
    """Number of the last attempt."""
    legs_opened: int = 0
    living_legs: dict[int, Target] = field(default_factory=dict)
    """Living legs of that attempt, by number, with their targets."""
    reading_legs: set[int] = field(default_factory=set)
    """Prefill legs among them."""
    is_read: bool = False
    """True once the prompt is prefilled in this attempt, which may live on in a decode pool without a leg."""
    answering_legs: set[int] = field(default_factory=set)
    """Legs of that attempt that gave a first token."""
    has_begun: bool = False
    """True once the client has a part of the answer."""
    identities: dict[int, str] = field(default_factory=dict)
    """Identity of the model at the target of each living leg when it started, by number; empty: not known."""
    answered_by: str = ""
    """Identity of the model that began the answer, as far as it was known; empty: it has not begun, or is unknown."""
    must_match: bool = False
    """True once an attempt failed under the rule that identities must be known and equal."""
    failed_by: str = ""
    """Identity of the model at the target that failed it then; empty: not known."""
    failed_at: set[Target] = field(default_factory=set)
    """Targets where a leg may have failed. The request need not go to these, however free they are."""
    hold: Hold | None = None
    """Last hold of the request that was seen."""
    taken_back: int = 0
    """Times that it was taken back from a target."""
    called_back: set[tuple[int, int]] = field(default_factory=set)
    """Legs that were ordered to be taken back, by attempt and number."""
    others: set[Target] = field(default_factory=set)
    """Targets that could have begun it when it was last ordered to be taken back."""
    rules: tuple[object, ...] = ()
    """Rules in force then."""
    awaits_leg: bool = False
    """True from the end of a leg that was taken back by the core's order to the start of the next."""
    ended: bool = False


class Checker:
    """Checker that follows one core. Give it every event with its effects, right after `handle`."""

    def __init__(self, core: GatewayCore) -> None:
        self._core = core
        self._stories: dict[RequestId, _Story] = {}
        self._violations: list[Violation] = []
        self._events = 0
        self._of_features = [each for feature in core.features if (each := feature.checker()) is not None]
        """Checkers of features' own invariants."""
        self._assigned = 0
        self._accepts: dict[str, PlaceRule | None] = {}
        """Origins that each replica accepts, by replica id, as assigned."""
        self._pools: dict[PoolName, PoolSpec] = {}
        self.held = self.held_for_a_cache = 0
        """Number of times a request was seen to be held for a replica, and of these, held because of what the replica's
        cache holds."""

    @property
    def open_requests(self) -> int:
        """Requests that have arrived and not ended: zero once everything is quiet, or a request was lost."""
        return sum(not story.ended for story in self._stories.values())

    def after(self, event: Event, effects: list[Effect], now_ns: int) -> list[Violation]:
        self._violations = []
        self._follow_event(event, effects)
        for effect in effects:
            self._follow_effect(effect, now_ns)
        self._check_silence(event, effects)
        self._check_rests(effects)
        self._events += 1
        if self._events % (1 + len(self._core.requests) // _FEW_REQUESTS) == 0:
            self._check_requests(now_ns)
            self._check_counts()
            self._check_features()
            self._check_bounds()
        self._check_idle_replicas()
        self._check_waiting_for_targets()
        self._check_who_is_held()
        self._check_patience(event, now_ns)
        self._forget_finished()
        return self._violations

    # Events and effects of each request

    def _follow_event(self, event: Event, effects: list[Effect]) -> None:
        if isinstance(event, AssignmentApplied) and event.version > self._assigned:
            self._assigned = event.version
            self._accepts = {spec.replica_id: spec.accepts for spec in event.replicas}
            self._pools = {pool.name: pool for pool in event.pools}
            for checker in self._of_features:
                checker.assigned(event)
        elif isinstance(event, RequestArrived):
            self._check_refused_for_places(event.profile, effects)
            self._open(event, _Story(self._rule_of(event), self._core.place))
        elif isinstance(event, ForwardArrived) and any(isinstance(effect, AcceptForward) for effect in effects):
            self._open(event, _Story(event.stamp.rule, event.stamp.origin))
            self._expect(
                "a request never leaves the regions its policy allows",
                event.stamp.rule.allows(self._core.place),
                f"{event.profile.request_id} was accepted at {self._core.place.region}",
            )
        elif isinstance(event, LegEnded):
            story = self._stories.get(event.request_id)
            if story is not None and story.attempt == event.attempt:
                self._follow_leg_end(story, event)
        elif isinstance(event, FirstToken) and event.is_sent:
            story = self._stories.get(event.request_id)
            if story is not None and story.attempt == event.attempt and event.leg in story.living_legs:
                story.answering_legs.add(event.leg)
                story.has_begun = story.has_begun or event.leg not in story.reading_legs

    def _follow_leg_end(self, story: _Story, event: LegEnded) -> None:
        target = story.living_legs.pop(event.leg, None)
        if target is not None:
            for checker in self._of_features:
                checker.leg_ended(event)
        if target is not None and event.remainder is not None:
            told = event.identity if target.kind is TargetKind.PEER else ""
            story.answered_by = story.answered_by or told or story.identities.get(1, "")
        if target is not None and event.result is LegResult.TAKEN_BACK:
            story.taken_back += 1
            story.awaits_leg = (event.attempt, event.leg) in story.called_back
        if target is not None and event.result in _LEFT_BEHIND and event.has_reached and not story.has_begun:
            self._follow_failure(story, event)
        if event.leg in story.reading_legs and event.result is LegResult.COMPLETED:
            story.is_read = True
        if target is not None and (event.result in _MAY_BE_FAILURES or event.refusal in _RESIDENCY_REFUSALS):
            story.failed_at.add(target)

    def _follow_failure(self, story: _Story, event: LegEnded) -> None:
        """Note the identity that a request which fails over must stay with."""
        request = self._core.requests.get(event.request_id)
        if request is None or request.request_class.pinned is not None:
            return
        if self._core.config.attempt.identity_rule_of(request.profile.model) is IdentityRule.SAME:
            story.failed_by = story.failed_by if story.must_match else story.identities.get(1, "")
            story.must_match = True

    def _rule_of(self, event: RequestArrived) -> PlaceRule:
        request = self._core.requests.get(event.profile.request_id)
        return request.stamp.rule if request is not None else PlaceRule()

    def _open(self, event: RequestArrived | ForwardArrived, story: _Story) -> None:
        request_id = event.profile.request_id
        self._expect("every request arrives once", request_id not in self._stories, request_id)
        self._stories[request_id] = story
        for checker in self._of_features:
            checker.arrived(event)

    def _follow_effect(self, effect: Effect, now_ns: int) -> None:
        if isinstance(effect, StartLeg):
            self._follow_start(effect)
        elif isinstance(effect, EndRequest):
            self._follow_end(effect, now_ns)

    def _follow_start(self, leg: StartLeg) -> None:
        story = self._stories.get(leg.request_id)
        if story is None or story.ended:
            self._fail("every request ends exactly once", f"{leg.request_id} was started after its end")
            return
        where = f"{leg.request_id}/{leg.attempt}.{leg.leg}"
        if leg.attempt == story.attempt and not (story.living_legs or (story.is_read and leg.role is LegRole.DECODE)):
            self._fail("only a living attempt opens further legs", where)
            return
        if leg.attempt == story.attempt:
            self._expect("legs are numbered in turn", leg.leg == story.legs_opened + 1, where)
        else:
            self._expect("one attempt at a time", not story.living_legs, where)
            self._expect("attempt numbers rise", leg.attempt > story.attempt and leg.leg == 1, where)
            story.answering_legs.clear()
            story.reading_legs.clear()
            story.identities.clear()
            story.is_read = False
        if leg.role is LegRole.PREFILL:
            story.reading_legs.add(leg.leg)
        story.attempt = leg.attempt
        story.legs_opened = leg.leg
        story.awaits_leg = False
        story.living_legs[leg.leg] = leg.target
        self._check_identity(story, leg, where)
        for checker in self._of_features:
            for broken in checker.wrong_start(leg, has_begun=story.has_begun):
                self._fail(broken, where)
        self._check_target(leg)

    def _check_identity(self, story: _Story, leg: StartLeg, where: str) -> None:
        """Check that a request that goes on after a failure stays with one identity of the model. Decode workers have
        that of their pool's prefill workers."""
        request = self._core.requests[leg.request_id]
        assert request.attempt is not None
        spec, model = request.attempt.legs[leg.leg].state.spec, request.profile.model
        if isinstance(spec, PeerSpec):
            peer = self._core.peers.get(spec.gateway_id)
            told = {each.identity for each in peer.served if each.model == model} if peer is not None else {""}
        else:
            told = {spec.identity_of(model)}
        story.identities[leg.leg] = min(told) if len(told) == 1 else ""
        if leg.role is LegRole.DECODE:
            return
        needed = leg.identity
        if story.answered_by and story.has_begun:
            fits = not told.isdisjoint({story.answered_by, ""})
            self._expect("an answer goes on with the model that began it", fits, where)
            if isinstance(spec, PeerSpec):
                carried = needed is not None and needed.name == story.answered_by
                self._expect("a forward carries the identity that its answer began with", carried, where)
        if story.must_match and not story.has_begun:
            fits = bool(story.failed_by) and story.failed_by in told
            self._expect("a request fails over only to the same model, where that is asked", fits, where)
            if isinstance(spec, PeerSpec):
                carried = needed is not None and needed.name == story.failed_by and not needed.takes_unknown
                self._expect("a forward carries the identity that it must have", carried, where)

    def _check_target(self, leg: StartLeg) -> None:
        request = self._core.requests[leg.request_id]
        assert request.attempt is not None
        spec = request.attempt.legs[leg.leg].state.spec
        rule = request.stamp.rule
        where = f"{leg.request_id} went to {leg.target} in {spec.place.region}"
        self._expect("a request never leaves the regions its policy allows", rule.allows(spec.place), where)
        if leg.target.kind is TargetKind.REPLICA:
            origin = self._stories[leg.request_id].origin
            taken = self._takes_from(leg.target.id, origin)
            self._expect("a replica takes only what its home accepts", taken, f"{where}, from {origin.region}")
            if isinstance(spec, ReplicaSpec):
                fits = self._is_long_enough(request, spec)
                self._expect("no request is sent to a replica that takes fewer tokens than it may come to", fits, where)
            role = ReplicaRole.UNIFIED if isinstance(spec, PeerSpec) else spec.role
            self._expect("a replica runs the part that is its own", _ROLES[leg.role] is role, f"{where} as {leg.role}")
            self._check_room(request, leg)
        else:
            crossed = request.hops.cross_region > 0
            self._expect("a forwarded request is never forwarded again", not crossed, where)
            self._expect("a closed policy forwards nothing", not self._core.policy.closed_reason, where)
            self._expect("a lockdown forwards nothing", self._core.forwarding_stop is None, where)

    def _check_room(self, request: RequestState, leg: StartLeg) -> None:
        """Check that a best-effort request starts only where no other leg runs. Others may follow it there, by the
        same event."""
        if request.request_class.service_class is not ServiceClass.BEST_EFFORT or leg.role is LegRole.DECODE:
            return
        is_alone = sum(leg.target in story.living_legs.values() for story in self._stories.values()) == 1
        self._expect("best effort starts only at an idle replica", is_alone, f"{leg.request_id} at {leg.target}")

    def _check_silence(self, event: Event, effects: list[Effect]) -> None:
        """Check that legs are taken back from silent targets and from replicas that leave alone, or for an interactive
        request, no more of them than other targets have room for, some if an idle replica can run one, and that a
        request which was taken back goes on."""
        orders = [each for each in effects if isinstance(each, TakeBackLeg)]
        interrupted = [each for each in orders if self._gave_way(each)]
        self._check_interrupted(interrupted)
        orders = [each for each in orders if each not in interrupted]
        silent = event.target if isinstance(event, TargetLost) and event.is_silent else None
        leaving = {state.target for state in self._core.replicas if state.leave_by_ns is not None}
        left = leaving | {silent}
        taken = [(order, self._stories[order.request_id].living_legs.get(order.leg)) for order in orders]
        stays = [f"{order.request_id} at {target}" for order, target in taken if target not in left]
        self._expect("only legs at targets that are silent or leave are taken back", not stays, str(stays))
        self._check_room_elsewhere([(order, target) for order, target in taken if target is not None])
        if silent is not None and not orders:
            self._check_left_alone(silent)
        for order in orders:
            self._stories[order.request_id].called_back.add((order.attempt, order.leg))

    def _gave_way(self, order: TakeBackLeg) -> bool:
        attempt = self._core.attempt_of(order.request_id, order.attempt)
        return attempt is not None and attempt.legs[order.leg].gave_way_ns is not None

    def _check_interrupted(self, orders: list[TakeBackLeg]) -> None:
        """Check that only requests that yield are interrupted, before their clients have anything, and no more of them
        at a replica than interactive requests that wait, there or here."""
        at: Counter[Target] = Counter()
        for order in orders:
            request, story = self._core.requests[order.request_id], self._stories[order.request_id]
            target = story.living_legs.get(order.leg)
            yields = request.request_class.service_class is not ServiceClass.INTERACTIVE
            self._expect("only requests that yield are interrupted", yields, order.request_id)
            has_begun = story.has_begun or order.leg in story.answering_legs
            self._expect("no answer that has begun is interrupted", not has_begun, order.request_id)
            if target is not None:
                at[target] += 1
        for target, count in at.items():
            wanting = sum(self._wants_slot(each, target) for each in self._core.requests.values())
            self._expect("requests are interrupted for interactive ones alone", count <= wanting, str(target))

    def _wants_slot(self, request: RequestState, target: Target) -> bool:
        """Return true for an interactive request that waits for this replica, or there without a first token."""
        profile, story, state = request.profile, self._stories[request.request_id], self._core.replicas.get(target.id)
        if profile.service_class is not ServiceClass.INTERACTIVE or profile.is_control or state is None:
            return False
        if request.phase is Phase.WAITING:
            is_elsewhere = request.held is not None and request.held.slot != state.slot
            pinned = request.request_class.pinned
            return profile.model in state.spec.models and not is_elsewhere and pinned in (None, target)
        return any(leg not in story.answering_legs and at == target for leg, at in story.living_legs.items())

    def _check_room_elsewhere(self, taken: list[tuple[TakeBackLeg, Target]]) -> None:
        rooms: dict[Target, int] = {}
        for order, target in taken:
            found = self._rooms_for(self._core.requests[order.request_id], target)
            self._expect("what is taken back can go on elsewhere", bool(found), order.request_id)
            story = self._stories[order.request_id]
            story.others, story.rules = set(found), self._rules()
            rooms |= found
        room = sum(rooms.values())
        self._expect("no more is taken back than there is room for", len(taken) <= room, f"{len(taken)}, for {room}")

    def _check_left_alone(self, silent: Target) -> None:
        """Check that no leg is left at a silent target whose request an idle replica could begin."""
        if any(story.called_back and story.living_legs for story in self._stories.values()):
            return
        waits = [
            request_id
            for request_id, story in self._stories.items()
            if silent in story.living_legs.values() and self._could_run_here(request_id, story)
        ]
        self._expect("no request waits at a silent target that an idle replica could serve", not waits, str(waits))

    def _rooms_for(self, request: RequestState, left: Target) -> dict[Target, int]:
        """Targets that could begin the request, or the rest of its answer, now, by the rules in force, with the room of
        each."""
        core, model = self._core, request.profile.model
        is_own = request.origin_gateway_id is None

        def allows(place: Place) -> bool:
            return self._allows(request.profile, place) if is_own else request.stamp.rule.allows(place)

        found = {
            state.target: max(1, state.room + state.yielding)
            for state in core.replicas
            if state.standing is Standing.AVAILABLE
            and model in state.spec.models
            and self._takes_part(state, request.request_class)
            and allows(state.spec.place)
            and self._takes_from(state.target.id, self._stories[request.request_id].origin)
        }
        if core.policy.closed_reason or core.forwarding_stop is not None:
            peers = []
        else:
            peers = [each for each in core.peers if each.standing is Standing.AVAILABLE and each.target != left]
        for peer in peers:
            told = () if peer.report is None else peer.report.capacities
            room = sum(each.room + each.yielding for each in told if each.model == model and allows(each.place))
            if room > len(peer.unreflected) and allows(peer.spec.place):
                found[peer.target] = room - len(peer.unreflected)
        return {target: room for target, room in found.items() if target not in request.failed_at}

    def _check_lost(self, story: _Story, end: EndRequest, now_ns: int) -> None:
        """Check that a request which was taken back does not end before another target has begun it, whatever the
        reason, while the rules are the same and a target that had room for it has room. The policy may hold a request
        for a replica that suits it better."""
        request = self._core.requests.get(end.request_id)
        if end.outcome is Outcome.ABANDONED or (request is not None and request.deadline_ns <= now_ns):
            return
        states = {state.target: state for state in (*self._core.replicas, *self._core.peers)}
        left = [str(each) for each in story.others if each in states and self._could_begin_one(states[each])]
        is_lost = bool(left) and story.hold is None and story.rules == self._rules()
        self._expect(
            "what is taken back goes on",
            not is_lost,
            f"{end.request_id} ended as {end.outcome} ({end.detail}) beside {left}",
        )

    def _could_begin_one(self, state: ReplicaState | PeerState) -> bool:
        """Return true if a target could begin one more request now."""
        if state.standing is not Standing.AVAILABLE:
            return False
        if isinstance(state, ReplicaState):
            return state.room > 0
        capacities = () if state.report is None else state.report.capacities
        return sum(each.room for each in capacities) > len(state.unreflected)

    def _rules(self) -> tuple[object, ...]:
        """Rules that decide where requests may go."""
        core = self._core
        return core.policy.digest, core.rules_version, core.forwarding_stop, id(core.config), core.draining

    def _could_run_here(self, request_id: RequestId, story: _Story) -> bool:
        """Return true if an idle replica of this gateway could run a request whose client has nothing yet. Requests
        that few replicas may take, and those whose rules have changed, are passed over."""
        request = self._core.requests[request_id]
        attempt = request.attempt
        if story.ended or story.has_begun or story.answering_legs or attempt is None or attempt.planner is not None:
            return False
        if any(leg.is_stopping for leg in attempt.legs.values()):
            return False
        if story.taken_back + 1 >= self._core.config.attempt.attempts_max:
            return False
        if request.origin_gateway_id is not None or request.stamp.policy_digest != self._core.policy.digest:
            return False
        wanted = request.request_class
        if wanted.pinned is not None or wanted.identity is not None or wanted.fit is not None or wanted.appends:
            return False
        if story.must_match or self._core.config.attempt.identity_rule_of(request.profile.model) is IdentityRule.SAME:
            return False
        return any(
            state.standing is Standing.AVAILABLE
            and not state.load
            and not self._core.waiting.held_for(state.slot)
            and state.spec.role is ReplicaRole.UNIFIED
            and request.profile.model in state.spec.models
            and state.target not in request.failed_at
            and story.rule.allows(state.spec.place)
            and self._accepts.get(state.spec.replica_id) is None
            for state in self._core.replicas
        )

    def _check_features(self) -> None:
        for feature in self._core.features:
            for invariant, detail in feature.violations():
                self._fail(invariant, detail)

    def _is_long_enough(self, request: RequestState, spec: ReplicaSpec) -> bool:
        """True if the replica's pool, as configured, takes the request's length. A request pinned by a stored response
        has no fit."""
        fit, told = request.request_class.fit, self._pools.get(spec.pool)
        return fit is None or told is None or not 0 < told.context_tokens_max < fit.need_tokens

    def _context_of(self, state: ReplicaState) -> int:
        told = self._pools.get(state.spec.pool)
        return told.context_tokens_max if told is not None and told.context_tokens_max else _NO_LIMIT

    def _takes_from(self, replica_id: str, origin: Place) -> bool:
        accepts = self._accepts.get(replica_id)
        return accepts is None or accepts.allows(origin)

    def _follow_end(self, end: EndRequest, now_ns: int) -> None:
        story = self._stories.get(end.request_id)
        if story is None:
            self._fail("every request ends exactly once", f"{end.request_id} ended without arriving")
            return
        self._expect("every request ends exactly once", not story.ended, f"{end.request_id} ended twice")
        story.ended = True
        if story.awaits_leg:
            self._check_lost(story, end, now_ns)

    def _forget_finished(self) -> None:
        done = [key for key, story in self._stories.items() if story.ended and not story.living_legs]
        for request_id in done:
            del self._stories[request_id]
            for checker in self._of_features:
                checker.forget(request_id)

    # State of the core

    def _check_requests(self, now_ns: int) -> None:
        for request in self._core.requests.values():
            story = self._stories.get(request.request_id)
            self._expect("nothing is remembered after its end", story is not None, request.request_id)
            waits = request in self._core.waiting
            runs = request.attempt is not None and bool(request.attempt.legs or request.attempt.is_between_legs)
            if (waits, runs) != (request.phase is Phase.WAITING, request.phase is not Phase.WAITING):
                told = f"{request.request_id} is {request.phase}, waits: {waits}, runs: {runs}"
                self._fail("each open request waits or runs", told)
            if story is not None and request.held is not None and request.held is not story.hold:
                story.hold = request.held
                self.held += 1
                self.held_for_a_cache += request.held.is_cold
            if request.phase is not Phase.ENDED and now_ns > request.next_deadline_ns:
                self._fail("nothing waits past its deadline", f"{request.request_id} waits on")
        open_ids = {request.request_id for request in self._core.requests.values() if request.phase is not Phase.ENDED}
        for request_id, story in self._stories.items():
            if not story.ended and request_id not in open_ids:
                self._fail("nothing is lost", f"{request_id} vanished")

    def _check_counts(self) -> None:
        alive: dict[int, int] = {}
        unread: dict[int, int] = {}
        for request in self._core.requests.values():
            for leg in _living_legs(request):
                key = id(leg.state)
                alive[key] = alive.get(key, 0) + 1
                unread[key] = unread.get(key, 0) + self._unread_bytes(request, leg)
        for state in [*self._core.replicas, *self._core.peers]:
            counted, left = alive.get(id(state), 0), unread.get(id(state), 0)
            if state.in_flight != counted:
                told = f"{state.target}: {state.in_flight} counted, {counted} alive"
                self._fail("counts of in-flight work equal the legs alive", told)
            if not state.backlog_bytes == left == sum(state.prefilling.values()):
                told = f"{state.target}: {state.backlog_bytes} counted, {left} left to read"
                self._fail("a backlog is what the legs without a first token have to read", told)
        for state in self._core.replicas:
            load = max(state.in_flight, state.running + state.waiting)
            self._expect("a replica's load follows its requests", state.load == load, f"{state.target}: not {load}")
        waiting = [request for request in self._core.requests.values() if request.phase is Phase.WAITING]
        self._expect("the queue's length is true", len(self._core.waiting) == len(waiting), f"{len(waiting)} wait")

    def _unread_bytes(self, request: RequestState, leg: LegState) -> int:
        story = self._stories.get(request.request_id)
        if story is None or leg.number in story.answering_legs:
            return 0
        if not request.profile.stream and (request.request_id, leg.attempt, leg.number) not in leg.state.prefilling:
            return 0  # an answer in one piece tells of no first token: its prompt counts as read after some time
        unread, prompt_bytes = leg.uncached_bytes, request.profile.prompt_bytes
        self._expect("no leg has more unread bytes than its prompt", 0 <= unread <= prompt_bytes, request.request_id)
        return unread

    def _check_idle_replicas(self) -> None:
        for *_, head in self._core.waiting.heads():
            idle = [state for state in self._core.replicas if self._could_serve(state, head)]
            self._expect(
                "while an allowed replica is available for someone who waits, someone is placed",
                not idle,
                f"{head.request_id} waits beside {[str(state.target) for state in idle]}",
            )

    def _check_rests(self, effects: list[Effect]) -> None:
        """Check that no new request started at a replica for which a request waits whose answer has begun: one that
        waits for any target and could run there, or one that was held for that replica before this event."""
        heads = self._core.waiting.all_heads()
        rests = [head for head in heads if head.request_class.appends and head.request_class.pinned is None]
        for effect in effects if rests else ():
            if not isinstance(effect, StartLeg) or effect.leg > 1 or effect.target.kind is not TargetKind.REPLICA:
                continue
            request = self._core.requests[effect.request_id]
            if request.request_class.appends or request.request_class.is_control:
                continue
            assert request.attempt is not None
            state = request.attempt.legs[effect.leg].state
            passed = [str(rest.request_id) for rest in rests if self._waits_for(state, rest)]
            self._expect("rests go before new requests", not passed, f"{effect.request_id} went before {passed}")

    def _waits_for(self, state: ReplicaState | PeerState, rest: RequestState) -> bool:
        """True if a request that waits has had a claim on this replica since before the event."""
        if not isinstance(state, ReplicaState):
            return False
        if rest.held is None:
            return self._may_run_at(state, rest)
        return rest.held is self._stories[rest.request_id].hold and rest.held.slot == state.slot

    def _check_who_is_held(self) -> None:
        """Check that no request is held for a replica that is idle, or for one that may not serve it."""
        for head in self._core.waiting.all_heads():
            if head.held is None:
                continue
            state = self._core.replicas.at(head.held.slot)
            where = f"{head.request_id} is held for {state.target}"
            wanted = head.request_class
            fits = (
                wanted.pinned in (None, state.target)
                and (wanted.pinned is not None or wanted.model in state.spec.models)
                and _has_identity(state, wanted)
                and wanted.rule.allows(state.spec.place)
                and self._takes_from(state.target.id, self._stories[head.request_id].origin)
            )
            self._expect("each held request is held for a replica that may serve it", fits, where)
            is_open = bool(self._core.replicas.pushable >> state.slot & 1)
            self._expect("no request is held for an idle replica", state.load > 0 or not is_open, where)
            is_busy = bool(state.backlog_bytes) or state.room < 0 or head.held.is_cold or not is_open
            self._expect("no request is held for a replica that neither prefills nor lacks slots", is_busy, where)

    def _check_patience(self, event: Event, now_ns: int) -> None:
        """Check that no request is held for a cache for longer than it would take to prefill again what it pushes out,
        for all requests that run there. Checked when the replica was just probed, as the core itself looks then."""
        if not isinstance(event, ReplicasObserved):
            return
        heard = {each.replica_id: each.sampled_ns for each in event.observations}
        for head in self._core.waiting.all_heads():
            if head.held is None or not head.held.is_cold:
                continue
            state = self._core.replicas.at(head.held.slot)
            reading_ns = self._core.placer.reading_again_ns(head.profile.prompt_bytes)
            self._expect(
                "no request waits for a cache longer than prefilling again what it would evict",
                heard.get(state.spec.replica_id) != state.sampled_ns
                or now_ns - head.arrived_ns <= _ESTIMATES_MOVE * reading_ns * (1 + state.load),
                f"{head.request_id} is held for {state.target}",
            )

    def _could_serve(self, state: ReplicaState, request: RequestState) -> bool:
        wanted = request.request_class
        if wanted.pinned not in (None, state.target):
            return False
        free = self._core.replicas.pushable if self._core.placer.takes_full_replicas else self._core.replicas.available
        return bool(free >> state.slot & 1) and self._may_run_at(state, request) and self._has_room(state, request)

    def _may_run_at(self, state: ReplicaState, request: RequestState) -> bool:
        """True if the replica may serve the request and has not failed it, whatever its load."""
        wanted = request.request_class
        if not self._takes_part(state, wanted) or not all(each.may_serve(state, request) for each in self._of_features):
            return False
        return (
            self._is_for(state, request)
            and wanted.model in state.spec.models
            and _has_identity(state, wanted)
            and wanted.rule.allows(state.spec.place)
            and self._takes_from(state.target.id, self._stories[request.request_id].origin)
            and state.target not in self._stories[request.request_id].failed_at
        )

    def _has_room(self, state: ReplicaState, request: RequestState) -> bool:
        """True if the request must take a free slot of this replica. One that yields or leaves room may wait beside a
        replica that has anything to do."""
        is_idle = not state.load and not state.backlog_bytes and not self._core.waiting.held_for(state.slot)
        yields = request.leaves_room or request.request_class.service_class is not ServiceClass.INTERACTIVE
        return not yields or (is_idle and state.standing is Standing.AVAILABLE)

    def _is_for(self, state: ReplicaState, request: RequestState) -> bool:
        """True if the replica is in the pool that the request prefers; others need not take it."""
        fit = request.request_class.fit
        if fit is None:
            return True
        context = min(self._context_of(state), state.context_seen or _NO_LIMIT)
        return context >= fit.need_tokens and state.spec.pool in fit.preferred

    def _takes_part(self, state: ReplicaState, wanted: RequestClass) -> bool:
        """True if requests of this class are placed at the replica."""
        if state.spec.role is ReplicaRole.UNIFIED:
            return True
        pool = self._pools.get(state.spec.pool)
        return state.spec.role is ReplicaRole.PREFILL and pool is not None and pool.connector in wanted.connectors

    def _check_waiting_for_targets(self) -> None:
        for head in self._core.waiting.all_heads():
            self._expect(
                "each waiting request has a target that may come",
                self._core.forwarding_stop is not None or self._may_be_served(head),
                f"{head.request_id} has no target",
            )

    def _may_be_served(self, request: RequestState) -> bool:
        """True if any known target could ever serve the request, in whatever state it is."""
        wanted, origin = request.request_class, self._stories[request.request_id].origin
        if wanted.pinned is not None:
            known = {state.target: state.spec.place for state in (*self._core.replicas, *self._core.peers)}
            place = known.get(wanted.pinned)
            return place is not None and wanted.rule.allows(place) and self._takes_from(wanted.pinned.id, origin)
        if self._core.is_awaited(wanted.model):
            return True  # the gateway that has them now is not known yet, or they come back
        own = (
            state.spec
            for state in self._core.replicas
            if wanted.model in state.spec.models
            and _has_identity(state, wanted)
            and self._takes_part(state, wanted)
            and (wanted.fit is None or state.spec.pool in wanted.fit.pools)
        )
        if any(wanted.rule.allows(spec.place) and self._takes_from(spec.replica_id, origin) for spec in own):
            return True
        return any(self._may_come_from(peer, request) for peer in self._core.peers)

    def _may_come_from(self, peer: PeerState, request: RequestState) -> bool:
        wanted = request.request_class
        place = peer.spec.place
        is_sibling = place.region == self._core.place.region
        overflows = self._core.config.placement.overflow_of(wanted.model) is OverflowMode.ON
        within_reach = wanted.may_stay_in_region if is_sibling else wanted.may_cross_regions and overflows
        if peer.target in request.barred_at or not within_reach or not wanted.rule.allows(place):
            return False
        if peer.report is None:
            return wanted.fit is None or wanted.fit.takes_unknown
        capacities = peer.served
        return any(
            each.model == wanted.model
            and wanted.rule.allows(each.place)
            and (each.connector is None or each.connector in wanted.connectors)
            and (wanted.fit is None or wanted.fit.is_taken_by(each))
            and (wanted.identity is None or wanted.identity.takes(each.identity))
            for each in capacities
        )

    def _check_refused_for_places(self, profile: RequestProfile, effects: list[Effect]) -> None:
        """Check that a request rejected for residency could not have been served by a replica of this gateway."""
        told = (effect for effect in effects if isinstance(effect, EndRequest))
        if not any(
            (each.request_id, each.outcome) == (profile.request_id, Outcome.REJECTED_RESIDENCY_PROCESSING)
            for each in told
        ):
            return
        fit = [
            str(state.target)
            for state in self._core.replicas
            if profile.model in state.spec.models
            and state.spec.role is ReplicaRole.UNIFIED
            and self._allows(profile, state.spec.place)
            and self._takes_from(state.target.id, self._core.place)
        ]
        self._expect(
            "no request is refused that a replica here may serve", not fit, f"{profile.request_id} beside {fit}"
        )

    def _allows(self, profile: RequestProfile, place: Place) -> bool:
        policy = self._core.policy
        own = policy.tenants.get(profile.tenant)
        rule = policy.process if own is None else own.process
        is_home = place.region == self._core.place.region
        return (
            rule.allows(place)
            and (is_home or not policy.closed_reason)
            and (profile.process is None or profile.process.allows(place))
        )

    def _check_bounds(self) -> None:
        core = self._core
        limit = core.config.placement.prefix_index_bytes_max
        for name, index in (("replica", core.placer.replica_index), ("peer", core.placer.peer_index)):
            self._expect(
                "every map has a bound", index.size_bytes <= limit, f"{name} index holds {index.size_bytes} bytes"
            )
        states = [*core.replicas, *core.peers]
        unreflected = sum(len(state.unreflected) for state in states)
        prefilling = sum(len(state.prefilling) for state in states)
        legs = sum(len(_living_legs(request)) for request in core.requests.values())
        self._expect("every map has a bound", unreflected <= legs, f"{unreflected} unreflected of {legs} legs")
        self._expect("every map has a bound", prefilling <= legs, f"{prefilling} prefilling of {legs} legs")

    def _expect(self, invariant: str, holds: bool, detail: str) -> None:
        """Record a violation unless the condition holds. Frequent checks call `_fail` alone: formatting a detail costs
        more than the check."""
        if not holds:
            self._fail(invariant, detail)

    def _fail(self, invariant: str, detail: str) -> None:
        self._violations.append(Violation(invariant, detail))


def _has_identity(state: ReplicaState, wanted: RequestClass) -> bool:
    return wanted.identity is None or wanted.identity.takes(state.spec.identity_of(wanted.model))


def _living_legs(request: RequestState) -> list[LegState]:
    return [] if request.attempt is None else list(request.attempt.legs.values())
