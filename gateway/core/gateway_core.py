"""The gateway's decision maker: events in, effects out. It never waits, reads a clock or does I/O.

Read `handle` first. Each event has one method, and after every event all waiting requests that can be placed are
placed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, assert_never

from gateway.core.attempts import RetryBudget
from gateway.core.bits import next_slot_from, slots_of
from gateway.core.effects import (
    AcceptForward,
    Effect,
    EndRequest,
    PublishLoad,
    RecordShadow,
    RefuseForward,
    StartLeg,
    StopLeg,
)
from gateway.core.events import (
    AssignmentApplied,
    ConfigApplied,
    DrainLifted,
    DrainRequested,
    Event,
    FirstToken,
    ForwardArrived,
    LegAccepted,
    LegEnded,
    PeersObserved,
    PolicyApplied,
    ReplicasObserved,
    RequestAbandoned,
    RequestArrived,
    ResponseStored,
    TargetLost,
    TimePassed,
    TokenBudgetRestored,
    TokensSettled,
)
from gateway.core.fair_queue import charge_of, leaves_room
from gateway.core.features.catalogue import features_of
from gateway.core.features.feature import Feature, Features, Kernel
from gateway.core.intake import Intake
from gateway.core.lengths import Lengths, choice_of
from gateway.core.limits import Exceeded
from gateway.core.placement.placer import Placement
from gateway.core.placement.policy import PlugIns, no_plug_ins
from gateway.core.pools import PoolFit
from gateway.core.prospects import waits_for, why_never_again
from gateway.core.publishing import Publisher
from gateway.core.requests import (
    AttemptState,
    Hold,
    LegEnd,
    LegState,
    Phase,
    RequestClass,
    RequestRecord,
    RequestState,
)
from gateway.core.residency import refusal_of
from gateway.core.resume import (
    FIRST_STEP_DEATHS_MAX,
    broken_outcome,
    deaths_after,
    is_rest,
    resumes_left,
    wait_max_ns_of,
    why_not_resumed,
)
from gateway.core.targets import Targets
from gateway.core.tenant_meter import TenantMeter
from gateway.core.threshold_tuning import ThresholdTuning
from gateway.core.timers import TimerKind
from gateway.core.token_budget import Estimate
from gateway.core.vocabulary import (
    Decision,
    Extra,
    GatewayId,
    Hops,
    LegResult,
    LegRole,
    ModelName,
    Outcome,
    Place,
    PlaceRule,
    RefusalReason,
    ReplicaSpec,
    RequestId,
    ResidencyStamp,
    Resumes,
    ServiceClass,
    Standing,
    TargetKind,
    TenantName,
)

_NO_HOPS = Hops()
_NO_RESUMES = Resumes(0)
_INVITED_MAX = 4
"""Replicas looked at by each event, besides those that changed, for held requests that other targets may suit better by
then."""
_DEAD = frozenset({Standing.UNHEALTHY, Standing.STALE})
_FULL = frozenset({Outcome.REJECTED_QUEUE_FULL, Outcome.REJECTED_TENANT_LIMIT})
_INTERACTIVE = ServiceClass.INTERACTIVE
_RUN = frozenset({LegResult.COMPLETED, LegResult.CANCELLED, LegResult.FAILED})
"""Results of legs for which an engine may have done some work."""
_RESIDENCY_REFUSALS = frozenset({RefusalReason.RESIDENCY_NOT_ACCEPTED, RefusalReason.RESIDENCY_STAMP})


class GatewayCore(Kernel):
    """Queues, places and follows every request of one gateway, from its arrival to the end of its last leg."""

    def __init__(
        self,
        gateway_id: GatewayId,
        place: Place,
        *,
        seed: int,
        plug_ins: PlugIns = no_plug_ins,
        features: Features = features_of,
    ) -> None:
        """`plug_ins` finds placement policies that are named in a config and not built in; `features` makes the
        optional features."""
        super().__init__(gateway_id, place, seed=seed, plug_ins=plug_ins)
        self._intake = Intake(self)
        self._publisher = Publisher(self)
        self.lengths = Lengths(self)
        self.tuning = ThresholdTuning(self)
        self._retry_budget = RetryBudget(self.config.attempt)
        self._now_ns: int | None = None
        self.arrived: RequestRecord | None = None
        """Record of the request that arrived last, for its owner."""
        self._arrivals = 0
        self._peers_version = 0
        """Version of the peers when held requests were last looked at."""
        self._invited_slot = 0
        """Slot from which replicas without a change are looked at next for their held requests, in turn."""
        self._effects: list[Effect] = []
        self._features = features(self)
        self._on: tuple[Feature, ...] = ()
        """Features that are on; the hooks of a request's steps are theirs alone."""
        self._newcomer: RequestState | None = None
        """Request that has just arrived while no other waits. It is placed without being queued, if it can be."""

    # Entry points

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """Take in one event and return the effects to carry out, in order.

        Timers that are due fire first; then the event's own method runs, decode workers are chosen for prefilled
        requests, and waiting requests are placed. A request that has just arrived and must wait is checked against full
        queues and its objective. Last, a heartbeat is published if one is due. `now_ns` never goes backwards.
        """
        assert self._now_ns is None or now_ns >= self._now_ns, "time went backwards"
        self._now_ns = now_ns
        self._effects = []
        self.waiting.shares.begin(now_ns)
        if self.timers.may_be_due(now_ns):
            self._fire_timers(now_ns)
        self._take_in(event, now_ns)
        for feature in self._on:
            feature.before_placing(now_ns)
        self._place_waiting(now_ns)
        if isinstance(event, (RequestArrived, ForwardArrived)):
            self._look_after_newcomer(event, now_ns)
        self._publish_if_due(now_ns)
        return self._effects

    def next_wakeup_ns(self) -> int | None:
        """Time at which TimePassed is wanted next, if no other event comes first."""
        return self.timers.next_ns()

    # Queries

    def may_enter(self, tenant: TenantName, process: PlaceRule | None) -> bool:
        """True if this region may see requests of this tenant; `process` is the rule of the client's key, which may
        narrow where they are processed."""
        return self._intake.ingress_of(tenant, process).allowed

    def models_for(self, tenant: TenantName, process: PlaceRule | None) -> list[ModelName]:
        """Models that a client of this tenant could request and be served; `process` is the rule of its key."""
        return self._intake.models_for(tenant, process)

    def first_served(
        self, names: Sequence[ModelName], tenant: TenantName, process: PlaceRule | None, follows: str
    ) -> ModelName | None:
        """First of these models, in order of preference, that a client of this tenant is served; None: no gateway
        serves any."""
        return self._intake.first_served(names, tenant, process, follows)

    def why_it_waits(self, request_id: RequestId) -> str:
        """Targets that a request waits for and what stands against each, in words; empty unless it waits."""
        request = self.requests.get(request_id)
        return waits_for(self, request) if request is not None and request.phase is Phase.WAITING else ""

    # Events

    def _take_in(self, event: Event, now_ns: int) -> None:
        """Pass an event to its method."""
        match event:
            case RequestArrived():
                self._request_arrived(event, now_ns)
            case ForwardArrived():
                self._forward_arrived(event, now_ns)
            case RequestAbandoned():
                self._request_abandoned(event)
            case LegAccepted():
                pass  # recorded by the driver; no decision depends on it
            case FirstToken():
                self._first_token(event, now_ns)
            case ResponseStored():
                self._response_stored(event)
            case LegEnded():
                self._leg_ended(event, now_ns)
            case ReplicasObserved():
                for observation in event.observations:
                    self.replicas.observe(observation, now_ns)
                for feature in self._on:
                    feature.observe(event.observations, now_ns)
            case PeersObserved():
                self._peers_observed(event, now_ns)
            case TargetLost():
                self._target_lost(event, now_ns)
            case ConfigApplied():
                self._config_applied(event, now_ns)
            case PolicyApplied():
                self._policy_applied(event)
            case AssignmentApplied():
                self._assignment_applied(event, now_ns)
            case DrainRequested() | DrainLifted():
                self.draining = isinstance(event, DrainRequested)
            case TokenBudgetRestored():
                self.token_budget.restore(event.snapshot)
            case TokensSettled():
                self.limits.settle(event.request_id, event.tokens, now_ns)
            case TimePassed():
                pass  # due timers have fired already
            case _:
                self._take_in_elsewhere(event, now_ns)

    def _take_in_elsewhere(self, event: Event, now_ns: int) -> None:
        """Pass an event to the feature whose own it is."""
        for feature in self._features:
            if feature.take_in(event, now_ns):
                return
        raise AssertionError(f"no feature takes in {event!r}")

    # Arrivals

    def _request_arrived(self, event: RequestArrived, now_ns: int) -> None:
        """Admit a client's request, or end it at once: by residency, drain, unknown model, full queue or its tenant's
        limits."""
        profile = event.profile
        assert profile.request_id not in self.requests, f"{profile.request_id} arrived twice"
        self.arrived = record = RequestRecord(event, self.policy, now_ns)
        budget = self._intake.budget_of(profile)
        admittance = self._intake.admittance_of(profile, budget)
        rejection = self._intake.rejection_of(profile, admittance)
        if rejection is not None:
            outcome, detail = rejection
            after_ns = self.drains.clears_ns(self.waiting, profile.model, now_ns) if outcome in _FULL else 0
            self._reject(record, outcome, detail, after_ns)
            self.goodput.refused(profile)
            return
        meter = self.limits.enter(profile, now_ns)
        if isinstance(meter, Exceeded):
            self._reject(record, meter.outcome, meter.detail, meter.retry_after_ns)
            self.goodput.refused(profile)
            return
        stamp = ResidencyStamp(self.place, profile.tenant, admittance.rule, self.policy.digest)
        self._admit(event, record, admittance.request_class, stamp, now_ns, budget=budget, meter=meter)

    def _reject(self, record: RequestRecord, outcome: Outcome, detail: str, retry_after_ns: int) -> None:
        """End a request on arrival."""
        end = EndRequest(record.request_id, outcome, detail, attempts=0, retry_after_ns=retry_after_ns)
        record.end = end
        self._effects.append(end)

    def _forward_arrived(self, event: ForwardArrived, now_ns: int) -> None:
        """Accept or refuse a request that another gateway forwarded; an accepted one is admitted like a client's."""
        request_id = event.profile.request_id
        self.arrived = record = RequestRecord(event, self.policy, now_ns)
        budget, stamp = self._intake.budget_of(event.profile), event.stamp
        request_class = self._intake.class_of(event.profile, stamp.rule, event.hops, stamp.origin, budget=budget)
        refusal = self._intake.refusal_of(event, request_class, now_ns)
        if refusal is not None:
            reason, detail = refusal
            record.refusal = refused = RefuseForward(request_id, reason, detail)
            self._effects.append(refused)
            return
        self._effects.append(AcceptForward(request_id))
        self._admit(
            event,
            record,
            request_class,
            stamp,
            now_ns,
            hops=event.hops,
            origin_gateway_id=event.origin_gateway_id,
            budget=budget,
            resumes_left=event.resumes_left,
        )

    def _admit(
        self,
        event: RequestArrived | ForwardArrived,
        record: RequestRecord,
        request_class: RequestClass,
        stamp: ResidencyStamp,
        now_ns: int,
        *,
        hops: Hops = _NO_HOPS,
        origin_gateway_id: GatewayId | None = None,
        budget: Estimate | None = None,
        meter: TenantMeter | None = None,
        resumes_left: Resumes | None = None,
    ) -> None:
        """Open a request, and queue it; the only one that waits is kept aside, to be placed without being queued."""
        self._arrivals += 1
        service_class, classes = request_class.service_class, self.config.classes
        request = RequestState(
            event.profile,
            request_class,
            record=record,
            arrival_number=self._arrivals,
            arrived_ns=now_ns,
            deadline_ns=event.deadline_ns,
            queue_deadline_ns=now_ns + classes.wait_max_ns(service_class, self.config.queue.wait_max_ns),
            stamp=stamp,
            hops=hops,
            origin_gateway_id=origin_gateway_id,
            budget=budget,
            resumes_left=resumes_left,
            promotion_ns=classes.promotion_at(service_class, now_ns),
            meter=meter,
        )
        if event.profile.goes_on:
            request.queue_deadline_ns = now_ns + wait_max_ns_of(self.config, request)
        self.requests[request.request_id] = request
        if len(self.waiting) or request_class.fit is not None or now_ns >= request.next_deadline_ns:
            self._wait(request, now_ns)
        else:
            self.waiting.announce(request)
            self._newcomer = request

    # Waiting and placement

    def _wait(self, request: RequestState, now_ns: int) -> None:
        """Queue a request and set its timer. One whose deadline has come already ends."""
        self.waiting.join(request)
        if now_ns >= request.next_deadline_ns:
            self._deadline_passed(request, now_ns)
        else:
            self.timers.set(request.timer, request.wakes_ns)

    def _promote(self, request: RequestState) -> None:
        """Serve a request as interactive from here on: it has yielded for long enough."""
        self._stop_waiting(request)
        request.promotion_ns = None
        request.request_class = replace(request.request_class, service_class=ServiceClass.INTERACTIVE)
        self.waiting.join(request)
        self.timers.set(request.timer, request.next_deadline_ns)

    def _wait_again(self, request: RequestState, now_ns: int) -> None:
        """Queue a request again after a failed attempt, at its old place, under the policy in force rather than that of
        its last attempt. It ends instead if no known target could ever serve it."""
        self._judge_again(request)
        if request.phase is Phase.ENDED:
            return
        never = why_never_again(self, request)
        if never is not None:
            self.end(request, *never)
            return
        request.move_to(Phase.WAITING)
        self._wait(request, now_ns)

    def _place_waiting(self, now_ns: int) -> None:
        """Place all requests that can be placed, in turn. Placing only uses capacity up, so a class that is blocked
        stays blocked for the rest of the round."""
        newcomer, self._newcomer = self._newcomer, None
        if len(self.waiting):
            if newcomer is not None:
                self._queue(newcomer)
            self._place_queued(now_ns)
        elif newcomer is not None:
            self._place_newcomer(newcomer, now_ns)
        if self.waiting.homes:
            self._place_held(now_ns)
        else:
            self.replicas.changed = 0

    def _place_newcomer(self, request: RequestState, now_ns: int) -> None:
        """Place the only request that waits; it is queued only if it must wait."""
        placement = self._placement_of(request, now_ns)
        if placement is None:
            self._queue(request)
        elif isinstance(placement, Hold):
            self._queue(request)
            self._hold(request, placement)
        else:
            self._start(request, placement, now_ns)

    def _queue(self, request: RequestState) -> None:
        """Put an announced request into the queue."""
        self.waiting.queue(request)
        self.timers.set(request.timer, request.wakes_ns)

    def _place_queued(self, now_ns: int) -> None:
        """Place queued requests, head by head. Requests held for a replica that has closed are released first."""
        for slot in slots_of(self.waiting.homes & ~self.replicas.open):
            for request in self.waiting.all_held_for(slot):  # else those that came later would choose before them
                self._unhold(request)
        heads = self.waiting.heads()
        blocked: list[RequestState] = []
        """Heads that found no target. They may spill over to another pool once no request waits for that one."""
        while heads:
            request = self.waiting.next_of(heads)
            fit = request.request_class.fit
            placement = self._placement_of(request, now_ns)
            if placement is None:
                if fit is not None:
                    blocked.append(request)
                continue
            if isinstance(placement, Hold):
                self._hold(request, placement)
            else:
                self._start(request, placement, now_ns)
            successor = self.waiting.head_of(request.request_class)
            if successor is not None:
                self.waiting.add_to(heads, successor)
            if blocked and fit is not None and not self._is_waited_for(request.profile.model, fit):
                for each in blocked:
                    self.waiting.add_to(heads, each)
                blocked = []

    def _is_waited_for(self, model: ModelName, fit: PoolFit) -> bool:
        """True if requests wait for the preferred pool of requests with this fit."""
        return bool(fit.preferred) and self.waiting.pool_length(model, fit.preferred[0]) > 0

    def _place_held(self, now_ns: int) -> None:
        """Look again at requests held for replicas: all replicas that changed, and a few of the others in turn, since
        the change may have made another target better. Without any change since the last look nothing is done."""
        changed, self.replicas.changed = self.replicas.changed, 0
        if not changed and self._peers_version == self.peers.version:
            return
        self._peers_version = self.peers.version
        homes = self.waiting.homes
        for slot in slots_of(homes & changed):
            self._place_held_for(slot, now_ns)
        for _ in range(_INVITED_MAX):
            others = self.waiting.homes & ~changed
            if not others:
                return
            slot = next_slot_from(others, self._invited_slot)
            self._invited_slot = slot + 1
            changed |= 1 << slot
            self._place_held_for(slot, now_ns)

    def _place_held_for(self, slot: int, now_ns: int) -> None:
        """Look again at the head of each class held for one replica: it starts, stays, is held for another one, or is
        released."""
        heads = self.waiting.held_heads(slot)
        stays = False
        """True once a head that waits for the replica's time stays: the turn was its own."""
        while heads:
            request = self.waiting.next_of(heads)
            request_class, held = request.request_class, request.held
            assert held is not None, "it is held for a replica"
            held.is_next = self.waiting.shares.are_contested and not (stays or held.is_cold)
            placement = self._placement_of(request, now_ns)
            held.is_next = False
            if isinstance(placement, Hold):
                if placement.slot == slot and placement.is_cold == held.is_cold:
                    stays = stays or not held.is_cold
                    continue
                self._hold(request, placement)
            elif placement is None:
                self._unhold(request)
            else:
                self._start(request, placement, now_ns)
            successor = self.waiting.held_head_of(slot, request_class, is_cold=held.is_cold)
            if successor is not None:
                self.waiting.add_to(heads, successor)

    def _placement_of(self, request: RequestState, now_ns: int) -> Placement | Hold | None:
        """Choose a target for a waiting request: a placement, a hold for one replica, or None while it must wait.
        Overflow in shadow mode is recorded too: before placing under a policy that weighs full replicas against other
        regions, else only for a request that must wait."""
        request.leaves_room = leaves_room(self.waiting.shares, request)
        if self.placer.takes_full_replicas:
            if self.placer.may_shadow:
                self._record_shadow(request, now_ns)
            return self.placer.place(request, now_ns)
        placement = self.placer.place(request, now_ns)
        if placement is None:
            self._record_shadow(request, now_ns)
        return placement

    def _hold(self, request: RequestState, hold: Hold) -> None:
        """Hold a waiting request for one replica, and tell the policy."""
        if request.held is not None:
            self.placer.unheld(request.held)
        self.waiting.hold(request, hold)
        self.placer.held(hold)

    def _unhold(self, request: RequestState) -> None:
        """Release a held request: it goes on waiting, for any target."""
        assert request.held is not None, "it is held for a replica"
        self.placer.unheld(request.held)
        self.waiting.unhold(request)

    def _stop_waiting(self, request: RequestState) -> None:
        """Take a waiting request out of the queues, and release its hold."""
        if request.held is not None:
            self.placer.unheld(request.held)
        self.waiting.leave(request)

    def _start(self, request: RequestState, placement: Placement, now_ns: int) -> None:
        """Start an attempt at the placed target: one leg that runs the whole request, or in a disaggregated pool a
        prefill leg and, at once or later, a decode leg."""
        self._stop_waiting(request)
        if now_ns > request.arrived_ns:
            self.drains.served(self.waiting, request, now_ns)
        request.move_to(Phase.RUNNING)
        prompt_tokens = 0 if request.budget is None else request.budget.prompt_tokens
        self.waiting.shares.started(charge_of(request), request.profile, prompt_tokens)
        request.attempts += 1
        if request.attempts == 1 and not request.profile.goes_on:
            self._retry_budget.first_attempt()
        request.resumes_begun = request.resumes
        attempt = request.attempt = AttemptState(request.attempts)
        self.timers.set(
            request.timer,
            min(now_ns + self.config.attempt.first_token_deadline_ns, request.deadline_ns),
        )
        for feature in self._on:
            if feature.plan_legs(request, attempt, placement, now_ns):
                return
        self.open_leg(request, attempt, LegRole.WHOLE, placement, now_ns)

    def open_leg(
        self, request: RequestState, attempt: AttemptState, role: LegRole, placement: Placement, now_ns: int
    ) -> None:
        """Open one more leg of a living attempt, count it at its target, and order the driver to start it."""
        attempt.legs_opened += 1
        leg = LegState(
            attempt.number,
            attempt.legs_opened,
            role,
            placement.state,
            _decision(request, placement, now_ns),
            policy=self.policy,
            started_ns=now_ns,
            kept_blocks=placement.matched_blocks,
            replicas_here=self.replicas.counts.get(request.profile.model, 0),
            resume=request.resumes,
        )
        attempt.legs[leg.number] = leg
        request.record.legs.append(leg)
        leg.uncached_bytes = placement.uncached_bytes
        if leg.uncached_bytes < 0:
            leg.uncached_bytes = request.profile.uncached_bytes(leg.kept_blocks)
        key = (request.request_id, attempt.number, leg.number)
        leg.state.home.started(leg.state, key, now_ns, leg.uncached_bytes)
        self._effects.append(self._start_leg(request, attempt, leg, placement))

    def _start_leg(self, request: RequestState, attempt: AttemptState, leg: LegState, placement: Placement) -> StartLeg:
        """Effect that starts a leg, with what its kind of target needs: the connector and pool for a part, extras and
        budgets for a replica, hops, stamp and resumptions left for a peer."""
        decision = leg.decision
        may_break = self._may_break(request, leg)
        asks_ids = may_break and self.config.resume.token_ids and not request.resumes and leg.role is LegRole.WHOLE
        extras: tuple[Extra, ...] = (Extra.TOKEN_IDS,) if asks_ids else ()
        budget_tokens, may_be_longer = 0, False
        if request.budget is not None:
            budget_tokens, may_be_longer, asks_usage = self.lengths.on_order(request, leg, decision)
            extras = (*extras, Extra.USAGE) if asks_usage else extras
        connector = prefill = pool = hops = stamp = left = None
        yields = True
        if attempt.planner is not None:
            part = attempt.planner.part_of(attempt, leg)
            connector, pool, prefill = part.connector, part.pool, part.prefill
        elif leg.target.kind is TargetKind.PEER:
            hops = request.hops.after(crosses_regions=placement.state.spec.place.region != self.place.region)
            stamp = request.stamp
            if may_break:
                left = Resumes(resumes_left(self.config.resume, request), request.first_step_deaths)
            yields = request.request_class.service_class is not _INTERACTIVE or (
                request.profile.service_class is _INTERACTIVE
            )
        return StartLeg(
            request.request_id,
            attempt.number,
            leg.number,
            leg.role,
            leg.target,
            decision,
            request.deadline_ns,
            hops,
            stamp,
            connector,
            prefill,
            pool,
            budget_tokens,
            may_be_longer,
            extras,
            may_break,
            request.resumes,
            left,
            yields,
        )

    def _may_break(self, request: RequestState, leg: LegState) -> bool:
        """True if the answer of this leg could be resumed elsewhere, should it break."""
        profile = request.profile
        if not profile.stream or profile.follows or not self.config.resume.enabled:
            return False
        spec = leg.state.spec
        return not isinstance(spec, ReplicaSpec) or self.replicas.continues(spec)

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def stop_leg(self, request: RequestState, attempt: AttemptState, leg: LegState, detail: str) -> None:
        """Order one leg to stop, unless that was ordered before. It ends when its LegEnded comes."""
        if not leg.is_stopping:
            leg.is_stopping = True
            self._effects.append(StopLeg(request.request_id, attempt.number, leg.number, detail))

    def _stop_legs(self, request: RequestState, attempt: AttemptState, detail: str) -> None:
        """Order all living legs of an attempt to stop, without blame for their targets."""
        for leg in attempt.legs.values():
            self.stop_leg(request, attempt, leg, detail)

    def _look_after_newcomer(self, event: RequestArrived | ForwardArrived, now_ns: int) -> None:
        """Check a request that has just arrived and must wait. It ends at once if the queue is overfull, or, as a
        client's own request, if its first token would come too late; else the forward that overflow would have made is
        recorded, since overflow would not let it wait behind others. Shadow forwards use no capacity, so bursts are
        overstated."""
        request = self.requests.get(event.profile.request_id)
        if request is None or request.phase is not Phase.WAITING:
            return
        self.drains.waits(self.waiting, request, now_ns)
        overfull = self._intake.overfullness_for(event.profile)
        if overfull is not None:
            clears_ns = self.drains.clears_ns(self.waiting, request.profile.model, now_ns)
            self.end(request, *overfull, retry_after_ns=clears_ns)
        elif isinstance(event, RequestArrived):
            late = self.drains.lateness(self.waiting, request, self._promised_ns(request), now_ns)
            if late is not None:
                self.end(request, Outcome.REJECTED_DEADLINE, late.detail, retry_after_ns=late.retry_after_ns)
            else:
                self._record_shadow(request, now_ns)

    def _promised_ns(self, request: RequestState) -> int | None:
        """Objective for the time to its first token, by service class; None: no objective."""
        return self.config.classes.first_token_ns(request.profile.service_class)

    def _record_shadow(self, request: RequestState, now_ns: int) -> None:
        """Record, once per request, the forward that overflow would have made."""
        if request.record.shadow is not None:
            return
        placement = self.placer.shadow(request, now_ns)
        if placement is not None:
            decision = _decision(request, placement, now_ns)
            shadow = RecordShadow(request.request_id, placement.state.target, decision)
            request.record.shadow = shadow
            self._effects.append(shadow)

    # Running legs

    def attempt_of(self, request_id: RequestId, number: int) -> AttemptState | None:
        """Attempt of that number if it is the request's living one, else None: stale events of superseded attempts are
        ignored."""
        request = self.requests.get(request_id)
        if request is None or request.attempt is None or request.attempt.number != number:
            return None
        return request.attempt

    def _first_token(self, event: FirstToken, now_ns: int) -> None:
        """Take in a leg's first token: learn from the time it took, and let the request's deadline replace that of the
        first token."""
        attempt = self.attempt_of(event.request_id, event.attempt)
        leg = None if attempt is None else attempt.legs.get(event.leg)
        if attempt is None or leg is None:
            return
        request = self.requests[event.request_id]
        if leg.first_token_ns is None:
            leg.first_token_ns = now_ns
        record, planner = request.record, attempt.planner
        if event.is_sent and record.first_leg is None:
            record.first_leg, record.first_token_ns = leg, now_ns
        if planner is not None and planner.first_token(request, leg):
            pass  # a leg that decodes: its time says nothing of prefill
        elif leg.target.kind is TargetKind.REPLICA:
            self.placer.learn_first_token(request, leg, now_ns)
        if request.first_token_ns is None:
            request.first_token_ns = now_ns
            self.drains.first_token(request.profile.model, now_ns - leg.started_ns)
        leg.state.home.first_token(leg.state, (event.request_id, event.attempt, event.leg), now_ns)
        if request.budget is not None:
            self.tuning.first_token(request, leg, now_ns)
        if request.phase is Phase.RUNNING:
            if event.is_sent:
                request.move_to(Phase.ANSWERING)
            self.timers.set(request.timer, request.deadline_ns)

    def _response_stored(self, event: ResponseStored) -> None:
        """Remember which target stores a response, for the requests that refer to it."""
        attempt = self.attempt_of(event.request_id, event.attempt)
        leg = None if attempt is None else attempt.legs.get(event.leg)
        if leg is not None:
            self.stored_responses.put(event.key, leg.target)

    def _leg_ended(self, event: LegEnded, now_ns: int) -> None:
        """Take in the end of a leg: update its target, shares, indexes and pools, then conclude what it means for the
        request. After the attempt's last leg, the request is forgotten if it has ended, else tried again, resumed or
        failed."""
        attempt = self.attempt_of(event.request_id, event.attempt)
        leg = None if attempt is None else attempt.legs.pop(event.leg, None)
        if attempt is None or leg is None:
            return
        request = self.requests[event.request_id]
        leg.ended, leg.ended_ns = event, now_ns
        result, detail = event.result, event.detail
        if result is LegResult.CANCELLED and leg.stop_detail:
            result = LegResult.REFUSED if leg.is_withdrawn else LegResult.FAILED
            detail = leg.stop_detail
        took_ns = now_ns - leg.started_ns
        key = event.request_id, event.attempt, event.leg
        has_failed_elsewhere = any(target != leg.target for target in request.failed_at)
        leg.state.home.ended(leg.state, key, result, now_ns, took_ns, has_failed_elsewhere=has_failed_elsewhere)
        if event.result in _RUN and event.has_reached:
            written = None if leg.role is LegRole.PREFILL else event.output_tokens
            self.waiting.shares.ended(charge_of(request), event.prompt_tokens, written)
        self.placer.leg_ended(request, leg, event, now_ns)
        if request.budget is not None:
            is_news, was_cut = self.lengths.leg_ended(request, leg, event)
            if self.tuning.leg_ended(leg, event, now_ns, was_cut=was_cut) or is_news:
                self._pools_changed()
        if attempt.planner is not None:
            attempt.planner.leg_ended(request, attempt, leg, event, now_ns)
        if request.phase is not Phase.ENDED:
            end = LegEnd(
                leg,
                result,
                detail,
                event.refusal,
                rest=event.rest,
                is_final=event.is_final,
                has_reached=event.has_reached,
                resumes_used=event.resumes_used,
            )
            self._conclude(request, attempt, end)
        if not attempt.is_over:
            return
        request.attempt = None
        if request.phase is Phase.ENDED:
            self._forget(request)
        else:
            self._attempt_failed(request, attempt, now_ns)

    def _conclude(self, request: RequestState, attempt: AttemptState, end: LegEnd) -> None:
        """Decide what the end of one leg means for its request: it ends, or the leg counts as a failure of the attempt.
        The other legs are stopped, without blame; one that completes all the same ends the request as completed."""
        if end.leg.role is LegRole.PREFILL and end.result is LegResult.COMPLETED:
            return
        was_stopped = end.result is LegResult.CANCELLED and bool(attempt.failures)
        if was_stopped:
            return
        if attempt.legs:
            self._stop_legs(request, attempt, f"leg {end.leg.number} has ended")
        match end.result:
            case LegResult.COMPLETED:
                self.end(request, Outcome.COMPLETED, "")
            case LegResult.CLIENT_ERROR if not request.resumes:
                self.end(request, Outcome.CLIENT_ERROR, end.detail)
            case LegResult.CANCELLED:
                self.end(request, Outcome.ABANDONED, end.detail)
            case LegResult.INTERNAL if end.leg.role is not LegRole.DECODE or request.phase is Phase.ANSWERING:
                self.end(request, Outcome.FAILED_INTERNALLY, end.detail)
            case LegResult.FAILED | LegResult.BUSY | LegResult.REFUSED | LegResult.TOO_LONG if (
                why := self._why_broken_for_good(request, end)
            ):
                told = end.in_words if end.rest is None else f"{end.in_words}; {why}"
                request.is_poison = end.is_final
                self.end(request, Outcome.FAILED_MIDSTREAM, told)
            case (
                LegResult.FAILED
                | LegResult.BUSY
                | LegResult.REFUSED
                | LegResult.TOO_LONG
                | LegResult.INTERNAL  # a decode leg's, before anything was sent: the request is tried again
                | LegResult.CLIENT_ERROR  # another engine may accept the rest of an answer
            ):
                attempt.failures.append(end)
            case _ as never:
                assert_never(never)

    def _attempt_failed(self, request: RequestState, attempt: AttemptState, now_ns: int) -> None:
        """Decide what follows an attempt whose legs are all over without a complete answer: learn from the failures,
        then try again by the worst of them, resume a broken answer, or end the request."""
        if not attempt.failures and attempt.planner is not None:
            request.last_failure = attempt.planner.why_it_stopped(attempt)
            self._try_again_after_failure(request, now_ns)
            return
        if not attempt.failures:
            self.end(request, Outcome.FAILED_BEFORE_FIRST_BYTE, "every leg ended, and none of them with an answer")
            return
        for end in attempt.failures:
            self._learn_from_failure(request, end)
        worst = next((end for end in attempt.failures if end.result is LegResult.FAILED), attempt.failures[0])
        request.last_failure = worst.in_words
        if request.phase is Phase.ANSWERING:
            self._go_on(request, attempt, now_ns)
        elif worst.result in (LegResult.FAILED, LegResult.CLIENT_ERROR):
            self._rest_failed(request, worst)
            if request.phase is not Phase.ENDED:
                self._try_again_after_failure(request, now_ns)
        elif worst.result is LegResult.BUSY:
            self._try_again_after_busy(request, now_ns)
        elif worst.result is LegResult.INTERNAL:
            self._try_again_after_failure(request, now_ns, Outcome.FAILED_INTERNALLY)
        elif worst.result is LegResult.TOO_LONG:
            self._try_again_longer(request, now_ns)
        else:
            self._try_again_after_refusal(request, worst, now_ns)

    # Resuming broken answers

    def _why_broken_for_good(self, request: RequestState, end: LegEnd) -> str:
        """Reason why an answer that this leg's end broke cannot be resumed; empty if it can, or has not begun."""
        return why_not_resumed(self.config.resume, request, end) if request.phase is Phase.ANSWERING else ""

    def _go_on(self, request: RequestState, attempt: AttemptState, now_ns: int) -> None:
        """Resume a broken answer: the rest is queued as a request under the old arrival number. Where no failed leg
        left a rest (a leg that was being stopped may have begun the answer) the request ends."""
        broken = next((end for end in attempt.failures if end.rest is not None), None)
        if broken is None or broken.rest is None:
            self.end(request, Outcome.FAILED_MIDSTREAM, request.last_failure)
            return
        there = broken.resumes_used or _NO_RESUMES
        is_first = not (request.resumes or there.count or request.profile.goes_on)
        request.resumes_begun = request.resumes + there.count
        request.resumes = request.resumes_begun + 1
        request.profile = broken.rest
        request.failures = request.busy_answers = 0
        request.first_step_deaths = there.first_step_deaths
        if not (is_first or self._retry_budget.take()):  # the first takes no retry: the broken leg's load is gone
            self.end(request, Outcome.FAILED_MIDSTREAM, f"{request.last_failure}; retry budget spent")
            return
        request.queue_deadline_ns = now_ns + wait_max_ns_of(self.config, request)
        self._wait_again(request, now_ns)

    def _rest_failed(self, request: RequestState, end: LegEnd) -> None:
        """Judge a request that failed at a target before its first token. Engines that failed the rest of a broken
        answer are counted: two in a row, or a peer's word that it must not be resumed, make the request poison, and it
        ends rather than being carried to the next engine. A client error only keeps it away from that target."""
        if end.result is LegResult.CLIENT_ERROR:
            self._avoid(request, end.leg)
        elif is_rest(request):
            request.first_step_deaths = deaths_after(request, end)
            if end.is_final or request.first_step_deaths >= FIRST_STEP_DEATHS_MAX:
                request.is_poison = True
                deaths = f"{request.first_step_deaths} in a row failed it before their first token"
                told = f"{request.last_failure}; {deaths}: nobody goes on with it"
                outcome = Outcome.FAILED_MIDSTREAM if request.resumes else Outcome.FAILED_BEFORE_FIRST_BYTE
                self.end(request, outcome, told)

    def _learn_from_failure(self, request: RequestState, end: LegEnd) -> None:
        """Keep the request away from a target that failed it or refused it for good. A refused forward is taken out of
        the prefix index of peers."""
        if end.result is LegResult.REFUSED and end.refusal is not RefusalReason.UNKNOWN_RESPONSE:
            self.placer.retract(request, end.leg.state, end.leg.kept_blocks)
        if end.refusal in _RESIDENCY_REFUSALS and end.leg.target not in request.barred_at:
            request.barred_at += (end.leg.target,)
        if end.result is LegResult.FAILED or end.refusal in _RESIDENCY_REFUSALS:
            self._avoid(request, end.leg)
        if end.refusal is RefusalReason.TOO_LONG or (
            end.result is LegResult.TOO_LONG and end.leg.target.kind is TargetKind.PEER
        ):
            request.barred_at += (end.leg.target,)
            self._avoid(request, end.leg)
        request.is_too_long |= end.result is LegResult.TOO_LONG or end.refusal is RefusalReason.TOO_LONG

    def _try_again_after_failure(
        self, request: RequestState, now_ns: int, outcome: Outcome = Outcome.FAILED_BEFORE_FIRST_BYTE
    ) -> None:
        """Queue the request again if its attempts and the retry budget allow it. `outcome`: how it ends otherwise."""
        request.failures += 1
        if request.failures >= self.config.attempt.attempts_max:
            self.end(request, outcome, request.last_failure)
        elif not self._retry_budget.take():
            self.end(request, outcome, f"{request.last_failure}; retry budget spent")
        else:
            request.queue_deadline_ns = now_ns + wait_max_ns_of(self.config, request)
            self._wait_again(request, now_ns)

    def _try_again_after_busy(self, request: RequestState, now_ns: int) -> None:
        """Queue the request again after its target was full. The target is alive and rests for a while.

        A request that finds engines full too often is rejected as for a full queue rather than failed: it may well be
        served a little later.
        """
        request.busy_answers += 1
        if request.busy_answers > self.config.attempt.refusals_max:
            self.end(request, Outcome.REJECTED_QUEUE_FULL, f"engines were full {request.busy_answers} times in a row")
        else:
            self._wait_again(request, now_ns)

    def lapse(self, request: RequestState, attempt: AttemptState, why: str, now_ns: int) -> None:
        assert attempt.planner is not None, "its legs are planned"
        attempt.planner.withdraw(request, attempt)
        request.attempt = None
        request.last_failure = why
        request.queue_deadline_ns = now_ns + wait_max_ns_of(self.config, request)
        self._try_again_after_busy(request, now_ns)

    def _try_again_longer(self, request: RequestState, now_ns: int) -> None:
        """Queue the request again, once, after an engine refused it for its length: its budget is larger by then, so a
        longer pool is chosen."""
        if request.was_too_long_before:
            self.end(request, Outcome.REJECTED_TOO_LONG, request.last_failure)
            return
        request.was_too_long_before = True
        self._wait_again(request, now_ns)

    def _try_again_after_refusal(self, request: RequestState, end: LegEnd, now_ns: int) -> None:
        """Queue the request again at its old place after a peer refused it; end it if the peer does not know the stored
        response."""
        if end.refusal is RefusalReason.UNKNOWN_RESPONSE:
            self.end(request, Outcome.REJECTED_UNKNOWN_RESPONSE, request.last_failure)
            return
        request.refusals += 1
        self._wait_again(request, now_ns)

    def _avoid(self, request: RequestState, leg: LegState) -> None:
        """Note that a target failed the request, which leaves it out of the request's class."""
        if leg.target not in request.failed_at:
            request.failed_at += (leg.target,)
        request.request_class = self._class_with_failures(request)

    def _class_with_failures(self, request: RequestState) -> RequestClass:
        """Class of the request with its failed targets in the slots that are theirs at present."""
        return replace(
            request.request_class,
            failed_replicas=self.replicas.mask_of(request.failed_at),
            failed_peers=self.peers.mask_of(request.failed_at),
        )

    # Ends of requests

    def _request_abandoned(self, event: RequestAbandoned) -> None:
        """End a request whose client, or the origin that forwarded it, has gone away."""
        request = self.requests.get(event.request_id)
        if request is not None and request.phase is not Phase.ENDED:
            self.end(request, Outcome.ABANDONED, "the client went away")

    def end(self, request: RequestState, outcome: Outcome, detail: str, *, retry_after_ns: int = 0) -> None:
        """End the request for its client. Its state stays until each living leg has reported its end."""
        if request in self.waiting:
            self._stop_waiting(request)
        self.drains.left(self.waiting, request.profile.model)
        request.move_to(Phase.ENDED)
        assert self._now_ns is not None, "something has happened"
        if request.meter is not None:
            was_turned_away = not request.attempts and outcome.startswith("rejected_")
            request.meter.leave(self._now_ns, was_turned_away=was_turned_away)
        self.timers.cancel(request.timer)
        attempt = request.attempt
        if attempt is not None and attempt.is_between_legs and attempt.planner is not None:
            attempt.planner.withdraw(request, attempt)
        if attempt is None or attempt.is_over:
            self._forget(request)
        if request.resumes:
            outcome = broken_outcome(outcome)
        used = _NO_RESUMES
        if request.resumes_begun or request.first_step_deaths:
            used = Resumes(request.resumes_begun, request.first_step_deaths)
        end = EndRequest(
            request.request_id,
            outcome,
            detail,
            request.attempts,
            request.is_poison,
            used,
            retry_after_ns=retry_after_ns,
        )
        request.record.end = end
        self._effects.append(end)
        self.goodput.ended(request, outcome, self._promised_ns(request), self._now_ns)

    def _forget(self, request: RequestState) -> None:
        """Drop the request's state and close its charge."""
        if self.requests.pop(request.request_id, None) is not None:
            self.waiting.shares.closed(charge_of(request))

    def _deadline_passed(self, request: RequestState, now_ns: int) -> None:
        """Act on a request's timer: promote or end it while it waits, end it at its deadline, and give up an attempt
        that gave no first token in time."""
        attempt = request.attempt
        if attempt is None and now_ns < request.next_deadline_ns:
            self._promote(request)
        elif attempt is None:
            waited_ms = (now_ns - request.arrived_ns) // 1_000_000
            because = f"; before that, {request.last_failure}" if request.last_failure else ""
            told = f"no replica was free for {waited_ms} ms: it waited for {waits_for(self, request)}{because}"
            self.end(request, Outcome.EXPIRED_IN_QUEUE, told)
        elif now_ns >= request.deadline_ns:
            self._stop_legs(request, attempt, "deadline")
            where = ", ".join(f"running at {leg.target}" for leg in attempt.legs.values())
            lacks = "" if attempt.planner is None else attempt.planner.what_it_lacks()
            told = f"deadline passed while {where or lacks}"
            self.end(request, Outcome.EXPIRED_RUNNING, told)
        elif attempt.is_between_legs and attempt.planner is not None:
            attempt.planner.withdraw(request, attempt)
            request.attempt = None
            request.last_failure = f"{attempt.planner.what_it_lacks()} before the first token's deadline"
            self._try_again_after_failure(request, now_ns)
        elif request.phase is Phase.RUNNING:
            self._order_to_stop(request, attempt, "no first token before the deadline")
            self.timers.set(request.timer, request.deadline_ns)

    def _order_to_stop(self, request: RequestState, attempt: AttemptState, why: str) -> None:
        """Order each leg that is not stopping yet to stop, and count it as its target's failure."""
        for leg in attempt.legs.values():
            if not leg.is_stopping:
                leg.stop_detail = why
                self.stop_leg(request, attempt, leg, why)

    # Fleet, config and policy changes

    def _peers_observed(self, event: PeersObserved, now_ns: int) -> None:
        """Take in heartbeats. A change of what peers serve counts as a change of pools."""
        served_version = self.peers.served_version
        for heartbeat in event.observations:
            self.peers.observe(heartbeat, now_ns)
        if self.peers.served_version != served_version:
            self._pools_changed()

    def _target_lost(self, event: TargetLost, now_ns: int) -> None:
        """Mark a target as lost at once."""
        targets: Targets[Any, Any] = self.replicas if event.target.kind is TargetKind.REPLICA else self.peers
        targets.lose(event.target.id, event.detail, now_ns)

    def _config_applied(self, event: ConfigApplied, now_ns: int) -> None:
        """Apply new settings to every part. Held requests are released and placed anew."""
        if event.config.attempt != self.config.attempt:
            self._retry_budget = RetryBudget(event.config.attempt)
        self.config = event.config
        self.waiting.shares.configure(event.config.sharing, event.config.tenants)
        self.replicas.configure(event.config, now_ns)
        for feature in self._features:
            feature.configure(event.config, now_ns)
        self.peers.configure(event.config, now_ns)
        for request in [each for each in self.waiting if each.held is not None]:
            self._unhold(request)
        self.placer.configure(event.config.placement)
        self.placer.configure_classes(event.config.classes)
        self.stored_responses.configure(event.config.placement.stored_responses_max)
        self.token_budget.configure(event.config.token_budget)
        self.tuning.configured(now_ns)
        self.limits.configure(event.config, now_ns)
        self._switch_features()
        self._refuse_hopeless()

    def _policy_applied(self, event: PolicyApplied) -> None:
        """Judge waiting requests again under the new policy; running ones finish under their stamps."""
        assert event.policy.place == self.place, "a policy of another place"
        self.policy = self.limits.policy = event.policy
        self.rules_version += 1
        self.judge_waiting_again()

    def judge_waiting_again(self) -> None:
        """Judge all waiting requests by the policy in force. They end, or return to the queue in the class they have by
        then; those that no known target could ever serve end too."""
        for request in list(self.waiting):
            self._stop_waiting(request)
            self._judge_again(request)
            if request.phase is not Phase.ENDED:
                self.waiting.join(request)
        self._refuse_hopeless()

    def _refuse_hopeless(self) -> None:
        """End each waiting request that no known target could ever serve. All requests of a class are alike in this, so
        that it costs O(classes) where none is ended."""
        for request in self.waiting.all_heads():
            hopeless: RequestState | None = request
            held = request.held
            while hopeless is not None and (never := why_never_again(self, hopeless)) is not None:
                self.end(hopeless, *never)
                hopeless = (
                    self.waiting.head_of(request.request_class)
                    if held is None
                    else self.waiting.held_head_of(held.slot, request.request_class, is_cold=held.is_cold)
                )

    def _judge_again(self, request: RequestState) -> None:
        """Judge a request that is out of the queue by the policy in force; it may end here."""
        if request.origin_gateway_id is None:
            self._judge_own(request)
        else:
            self._judge_forwarded(request)

    def _judge_own(self, request: RequestState) -> None:
        """Judge a client's own request by the residency policy: it ends, or gets a new stamp and class."""
        tenant = request.profile.tenant
        ingress = self._intake.ingress_of(tenant, request.profile.process)
        if not ingress.allowed:
            self.end(request, Outcome.REJECTED_RESIDENCY_INGRESS, ingress.why)
            return
        request.stamp = ResidencyStamp(self.place, tenant, self._intake.rule_of(request.profile), self.policy.digest)
        self._classify_again(request)

    def _judge_forwarded(self, request: RequestState) -> None:
        """Judge a request that was forwarded to this gateway: it fails if its stamp is not accepted or forwarding is
        stopped, else it gets a new class."""
        refusal = refusal_of(self.policy, request.stamp)
        if refusal is not None or self.locked_down:
            why = refusal[1] if refusal else "an operator has stopped all forwarding"
            self.end(request, Outcome.FAILED_BEFORE_FIRST_BYTE, f"no longer accepted here: {why}")
            return
        self._classify_again(request)

    def _classify_again(self, request: RequestState) -> None:
        """Give the request the class that the present policy, fleet and lockdown make of it, keeping its failed
        targets, its pinned target and a promotion."""
        old = request.request_class
        if request.budget is None:
            request.budget = self._intake.budget_of(request.profile)
        stamp = request.stamp
        fresh = self._intake.class_of(request.profile, stamp.rule, request.hops, stamp.origin, budget=request.budget)
        gave_up_peers = request.refusals >= max(self.config.attempt.refusals_max, 1)
        request.request_class = replace(
            fresh,
            may_stay_in_region=fresh.may_stay_in_region and not gave_up_peers,
            may_cross_regions=fresh.may_cross_regions and not gave_up_peers,
            failed_replicas=old.failed_replicas,
            failed_peers=old.failed_peers,
            pinned=old.pinned,
            fit=None if old.pinned is not None else fresh.fit,
            service_class=min(old.service_class, fresh.service_class, key=_rank),  # may have been promoted
        )

    def _assignment_applied(self, event: AssignmentApplied, now_ns: int) -> None:
        """Own exactly the assigned replicas and know the assigned peers; an old version is ignored."""
        if event.version <= self.assignment_version:
            return
        self.assignment_version = event.version
        self.rules_version += 1
        self.control = event.control
        self.away = frozenset(event.away)
        joined_replicas, left_replicas = self.replicas.assign(event.replicas, now_ns, event.pools)
        self.tuning.configured(now_ns)
        for state in left_replicas:
            self.waiting.release(state.slot)  # the policy forgets these holds with the replica
        self.placer.replicas_changed(joined_replicas, left_replicas)
        for feature in self._features:
            feature.assign(event.pools, joined_replicas, left_replicas, now_ns)
        joined_peers, left_peers = self.peers.assign(event.peers)
        self.limits.assigned(now_ns)
        self.placer.peers_changed(joined_peers, left_peers)
        self._switch_features()
        for feature in self._features:
            feature.assigned(now_ns)
        self._find_failures_again()
        self._pools_changed()

    def _switch_features(self) -> None:
        """Note which features are on."""
        self._on = tuple([feature for feature in self._features if feature.is_on()])

    def _pools_changed(self) -> None:
        """Fit waiting requests to changed pools. Where budgets sort requests, all are judged again, since they may fit
        into other pools; else only those that no target could serve are ended."""
        if self.ladders.exist or self.lengths.sorted:
            self.lengths.sorted = self.ladders.exist
            self.judge_waiting_again()
        else:
            self._refuse_hopeless()

    def _find_failures_again(self) -> None:
        """Update request classes after slots changed hands: failed targets may have moved or gone, and the place where
        a request arrived may count for its replicas or no longer do so."""
        for request in self.requests.values():
            request_class = self._class_with_failures(request) if request.failed_at else request.request_class
            origin = self._intake.origin_that_counts(request.stamp.origin)
            if origin != request_class.origin:
                request_class = replace(request_class, origin=origin)
            if request_class == request.request_class:
                continue
            waits = request in self.waiting
            if waits:
                self._stop_waiting(request)
            request.request_class = request_class
            if waits:
                self.waiting.join(request)

    # Timers

    def _fire_timers(self, now_ns: int) -> None:
        """Act on each timer that is due."""
        for timer in self.timers.pop_due(now_ns):
            match timer.kind:
                case TimerKind.REQUEST:
                    self._deadline_passed(self.requests[RequestId(timer.id)], now_ns)
                case TimerKind.REPLICA:
                    self.replicas.wake(timer.id, now_ns)
                case TimerKind.PEER:
                    self.peers.wake(timer.id, now_ns)
                case TimerKind.SHARES:
                    self.limits.round(now_ns)
                case TimerKind.PUBLISH | TimerKind.DECODE:
                    pass  # looked at after every event
                case _ as never:
                    assert_never(never)

    def _publish_if_due(self, now_ns: int) -> None:
        """Publish a heartbeat if one is due, and forget prefixes past their time to live."""
        report = self._publisher.due(now_ns)
        if report is not None:
            self.placer.expire_prefixes(now_ns)
            self._effects.append(PublishLoad(report))


def _decision(request: RequestState, placement: Placement, now_ns: int) -> Decision:
    return Decision(
        placement.reason,
        placement.matched_blocks,
        request.profile.prefix_blocks,
        placement.candidates,
        waited_ns=now_ns - request.arrived_ns,
        considered=placement.considered,
        pool=None if request.budget is None else choice_of(request, placement),
    )


def _rank(service_class: ServiceClass) -> int:
    return service_class.rank
