"""The gateway's one decision maker: events in, effects out. It never waits, looks at a clock, or touches the world.

Read `handle` first; each event has one method, and after each event whoever can be placed is placed.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, replace
from typing import assert_never

from gateway.core.admission import AttemptState, Phase, RequestClass, RequestState, WaitingRoom
from gateway.core.attempts import RetryBudget
from gateway.core.config import CoreConfig
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
    DrainRequested,
    Event,
    FirstToken,
    ForwardArrived,
    LegAccepted,
    LegEnded,
    LockdownChanged,
    PeersObserved,
    PolicyApplied,
    ReplicasObserved,
    RequestAbandoned,
    RequestArrived,
    ResponseStored,
    TargetLost,
    TimePassed,
)
from gateway.core.peers import Peers, PeerState
from gateway.core.placement.placer import Placement, Placer
from gateway.core.placement.policy import PlugIns, no_plug_ins
from gateway.core.prefix_index import PrefixIndex
from gateway.core.replicas import Replicas, ReplicaState
from gateway.core.residency import both, closed_policy, may_enter, processing_rule, refusal_of
from gateway.core.stored_responses import StoredResponses
from gateway.core.timers import Timer, TimerKind, Timers
from gateway.core.vocabulary import (
    Decision,
    GatewayId,
    Hops,
    LegResult,
    LegRole,
    LoadReport,
    ModelName,
    ModelQueue,
    Outcome,
    Place,
    PlaceRule,
    RefusalReason,
    ReplicaId,
    RequestId,
    RequestProfile,
    ResidencyStamp,
    TargetKind,
)

_NO_HOPS = Hops()
_CLASSES_MAX = 1024
_RESIDENCY_REFUSALS = frozenset({RefusalReason.RESIDENCY_NOT_ACCEPTED, RefusalReason.RESIDENCY_STAMP})


@dataclass(frozen=True, slots=True)
class CoreGauges:
    """Levels for the metrics page."""

    queue_length: int
    requests: int
    attempts: int
    prefix_index_bytes: int
    prefix_index_blocks: int
    replicas: int
    replicas_available: int
    peers: int
    peers_usable: int
    probe_age_ns: dict[ReplicaId, int]
    heartbeat_age_ns: dict[GatewayId, int]


class GatewayCore:
    """Queues, places and follows every request of one gateway."""

    def __init__(self, gateway_id: GatewayId, place: Place, *, seed: int, plug_ins: PlugIns = no_plug_ins) -> None:
        """`plug_ins` finds the placement policies that a config may name and that do not come with us."""
        self.gateway_id = gateway_id
        self.place = place
        self.config = CoreConfig()
        self.policy = closed_policy(place, "no policy applied yet")
        self.assignment_version = 0
        self.draining = False
        self.locked_down = False
        self.requests: dict[RequestId, RequestState] = {}
        self.waiting = WaitingRoom()
        self._timers = Timers()
        self._publish_timer = Timer(TimerKind.PUBLISH, "")
        self.replicas = Replicas(self.config, self._timers)
        self.peers = Peers(self.config, self._timers)
        self.placer = Placer(
            place.region, self.config.placement, self.replicas, self.peers, random.Random(seed), plug_ins=plug_ins
        )
        self.stored_responses = StoredResponses(self.config.placement.stored_responses_max)
        self._retry_budget = RetryBudget(self.config.attempt)
        self._now_ns: int | None = None
        self._arrivals = 0
        self._classes: dict[RequestClass, RequestClass] = {}
        """Equal ones are mostly the same one, which makes looking it up elsewhere cheap; equality still decides."""
        self._effects: list[Effect] = []
        self._published: LoadReport | None = None
        self._published_ns = 0
        self._published_state: tuple[object, ...] = ()

    # The two doors

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """Take in one event and answer with what has to be done, in order. `now_ns` never goes backwards."""
        assert self._now_ns is None or now_ns >= self._now_ns, "time went backwards"
        self._now_ns = now_ns
        self._effects = []
        self._fire_timers(now_ns)
        self._take_in(event, now_ns)
        self._place_waiting(now_ns)
        if isinstance(event, RequestArrived):
            self._shadow_arrival(event.profile.request_id, now_ns)
        self._publish_if_due(now_ns)
        return self._effects

    def next_wakeup_ns(self) -> int | None:
        """When TimePassed is wanted next, if nothing else happens first."""
        return self._timers.next_ns()

    def _take_in(self, event: Event, now_ns: int) -> None:
        match event:
            case RequestArrived():
                self._request_arrived(event, now_ns)
            case ForwardArrived():
                self._forward_arrived(event, now_ns)
            case RequestAbandoned():
                self._request_abandoned(event)
            case LegAccepted():
                pass  # recorded by whoever drives us; a decision rests on it nowhere
            case FirstToken():
                self._first_token(event, now_ns)
            case ResponseStored():
                self._response_stored(event)
            case LegEnded():
                self._attempt_ended(event, now_ns)
            case ReplicasObserved():
                for observation in event.observations:
                    self.replicas.observe(observation, now_ns)
            case PeersObserved():
                for heartbeat in event.observations:
                    self.peers.observe(heartbeat, now_ns)
            case TargetLost():
                self._target_lost(event, now_ns)
            case ConfigApplied():
                self._config_applied(event, now_ns)
            case PolicyApplied():
                self._policy_applied(event)
            case AssignmentApplied():
                self._assignment_applied(event, now_ns)
            case DrainRequested():
                self.draining = True
            case LockdownChanged():
                self._lockdown_changed(event)
            case TimePassed():
                pass  # the timers have fired already
            case _ as never:
                assert_never(never)

    # Requests come

    def _request_arrived(self, event: RequestArrived, now_ns: int) -> None:
        profile = event.profile
        assert profile.request_id not in self.requests, f"{profile.request_id} arrived twice"
        rule = self._rule_of(profile)
        request_class = self._class_of(profile, rule, _NO_HOPS)
        rejection = self._rejection_of(profile, request_class)
        if rejection is not None:
            outcome, detail = rejection
            self._effects.append(EndRequest(profile.request_id, outcome, detail, attempts=0))
            return
        stamp = ResidencyStamp(self.place, profile.tenant, rule, self.policy.digest)
        self._admit(event, request_class, stamp, now_ns)

    def _rejection_of(self, profile: RequestProfile, request_class: RequestClass) -> tuple[Outcome, str] | None:
        ingress = may_enter(self.policy, profile.tenant, profile.process)
        if not ingress.allowed:
            return Outcome.REJECTED_RESIDENCY_INGRESS, ingress.why
        if self.draining:
            return Outcome.REJECTED_DRAINING, "this gateway is going out of service"
        if not self._knows_model(profile.model) and not profile.follows:
            return Outcome.REJECTED_UNKNOWN_MODEL, f"the model `{profile.model}` does not exist"
        if profile.follows and not self._can_follow(request_class):
            return Outcome.REJECTED_UNKNOWN_RESPONSE, "no such response is known here"
        return self._fullness_for(profile, request_class)

    def _fullness_for(self, profile: RequestProfile, request_class: RequestClass) -> tuple[Outcome, str] | None:
        """A full queue turns away only those who would have to wait in it."""
        has_to_wait = self.waiting.has_class(request_class) or not self.placer.has_target(request_class)
        if not has_to_wait:
            return None
        if len(self.waiting) >= self.config.queue.length_max:
            return Outcome.REJECTED_QUEUE_FULL, f"{len(self.waiting)} requests are waiting"
        own = self.waiting.tenant_length(profile.tenant)
        if own >= self.config.queue.tenant_length_max:
            return Outcome.REJECTED_TENANT_LIMIT, f"{own} requests of this tenant are waiting"
        return None

    def _can_follow(self, request_class: RequestClass) -> bool:
        return request_class.pinned is not None and self.placer.can_ever_reach(request_class)

    def _forward_arrived(self, event: ForwardArrived, now_ns: int) -> None:
        request_id = event.profile.request_id
        request_class = self._class_of(event.profile, event.stamp.rule, event.hops)
        refusal = self._refusal_of(event, request_class, now_ns)
        if refusal is not None:
            reason, detail = refusal
            self._effects.append(RefuseForward(request_id, reason, detail))
            return
        self._effects.append(AcceptForward(request_id))
        origin = event.origin_gateway_id
        self._admit(event, request_class, event.stamp, now_ns, hops=event.hops, origin_gateway_id=origin)

    def _refusal_of(
        self, event: ForwardArrived, request_class: RequestClass, now_ns: int
    ) -> tuple[RefusalReason, str] | None:
        """Every reason not to take a forward, the lawful ones first."""
        return self._residency_refusal_of(event) or self._capacity_refusal_of(event, request_class, now_ns)

    def _residency_refusal_of(self, event: ForwardArrived) -> tuple[RefusalReason, str] | None:
        """The origin is whom our operator says it is, wherever the stamp claims to come from."""
        origin = self.peers.get(event.origin_gateway_id)
        if origin is None:
            return RefusalReason.RESIDENCY_NOT_ACCEPTED, f"gateway {event.origin_gateway_id} is no peer of ours"
        told = origin.spec.place
        if event.stamp.origin != told:
            return (
                RefusalReason.RESIDENCY_STAMP,
                f"gateway {event.origin_gateway_id} is in {told.region}, not where its stamp says",
            )
        if not event.hops.is_within_limit(crosses_regions=told.region != self.place.region):
            return RefusalReason.HOP_LIMIT, "a forwarded request is not forwarded again"
        return refusal_of(self.policy, event.stamp)

    def _capacity_refusal_of(
        self, event: ForwardArrived, request_class: RequestClass, now_ns: int
    ) -> tuple[RefusalReason, str] | None:
        profile = event.profile
        if self.locked_down:
            return RefusalReason.LOCKDOWN, "an operator has stopped all forwarding"
        if self.draining:
            return RefusalReason.DRAINING, "this gateway is going out of service"
        if profile.request_id in self.requests:
            return RefusalReason.DUPLICATE, "a request of this id is here already"
        if event.deadline_ns <= now_ns:
            return RefusalReason.DEADLINE, "its deadline has passed"
        if profile.follows:
            can_follow = self._can_follow(request_class)
            return None if can_follow else (RefusalReason.UNKNOWN_RESPONSE, "no such response is known here")
        if not self.replicas.eligible(profile.model, event.stamp.rule):
            return RefusalReason.UNKNOWN_MODEL, f"no replica here may serve `{profile.model}` for it"
        if self._fullness_for(profile, request_class) is not None:
            return RefusalReason.QUEUE_FULL, f"{len(self.waiting)} requests are waiting"
        if self.placer.has_replica(request_class) and not self.waiting.has_class(request_class):
            return None
        queue_length = self.waiting.length(profile.model)
        if queue_length >= self.config.placement.peer_queue_length_max:
            return RefusalReason.BUSY, f"{queue_length} requests wait for `{profile.model}`"
        return None

    def _admit(
        self,
        event: RequestArrived | ForwardArrived,
        request_class: RequestClass,
        stamp: ResidencyStamp,
        now_ns: int,
        *,
        hops: Hops = _NO_HOPS,
        origin_gateway_id: GatewayId | None = None,
    ) -> None:
        self._arrivals += 1
        request = RequestState(
            event.profile,
            request_class,
            arrival_number=self._arrivals,
            arrived_ns=now_ns,
            deadline_ns=event.deadline_ns,
            queue_deadline_ns=now_ns + self.config.queue.wait_max_ns,
            stamp=stamp,
            hops=hops,
            origin_gateway_id=origin_gateway_id,
        )
        self.requests[request.request_id] = request
        self._wait(request, now_ns)

    def _class_of(self, profile: RequestProfile, rule: PlaceRule, hops: Hops) -> RequestClass:
        """Without a usable policy, or in lockdown, nothing is forwarded, not even inside the region."""
        is_open = not self.policy.closed_reason and not self.locked_down
        fresh = RequestClass(
            profile.model,
            rule,
            may_stay_in_region=is_open and hops.may_stay_in_region,
            may_cross_regions=is_open and hops.may_cross_regions,
            pinned=self.stored_responses.get(profile.follows) if profile.follows else None,
            is_control=profile.is_control,
        )
        if len(self._classes) >= _CLASSES_MAX:
            self._classes.clear()
        return self._classes.setdefault(fresh, fresh)

    def _rule_of(self, profile: RequestProfile) -> PlaceRule:
        """Where a client's own request may be processed: the policy's rule, narrowed by the key's if it has one."""
        rule = processing_rule(self.policy, profile.tenant)
        if profile.process is None:
            return rule
        places = (self.place, *(state.spec.place for state in (*self.replicas, *self.peers)))
        return both(rule, profile.process, {place.region: place.jurisdiction for place in places})

    def _knows_model(self, model: ModelName) -> bool:
        return self.replicas.serves(model) or self.peers.serves(model)

    # Requests wait and are placed

    def _wait(self, request: RequestState, now_ns: int) -> None:
        request.phase = Phase.WAITING
        self.waiting.join(request)
        if now_ns >= request.next_deadline_ns:
            self._deadline_passed(request, now_ns)
        else:
            self._timers.set(request.timer, request.next_deadline_ns)

    def _wait_again(self, request: RequestState, now_ns: int) -> None:
        """Back to the old place in the queue, under the policy of this moment rather than that of its last attempt."""
        self._judge_again(request)
        if request.phase is not Phase.ENDED:
            self._wait(request, now_ns)

    def _place_waiting(self, now_ns: int) -> None:
        """Place whoever can be placed, earliest arrival first. Placing only uses capacity up, so a class that is
        blocked
        stays blocked for the rest of the round."""
        heads = self.waiting.heads()
        while heads:
            _, request = heapq.heappop(heads)
            placement = self.placer.place(request, now_ns)
            if placement is None:
                self._record_shadow(request, now_ns)
                continue
            self._start(request, placement, now_ns)
            successor = self.waiting.head_of(request.request_class)
            if successor is not None:
                heapq.heappush(heads, (successor.arrival_number, successor))

    def _start(self, request: RequestState, placement: Placement, now_ns: int) -> None:
        self.waiting.leave(request)
        request.phase = Phase.RUNNING
        request.attempts += 1
        if request.attempts == 1:
            self._retry_budget.first_attempt()
        attempt = AttemptState(request.attempts, placement.state, now_ns, placement.kept_blocks)
        request.attempt = attempt
        self._count_start(request, attempt, now_ns)
        self._timers.set(
            request.timer,
            min(now_ns + self.config.attempt.first_token_deadline_ns, request.deadline_ns),
        )
        self._effects.append(self._start_leg(request, attempt, placement, now_ns))

    def _start_leg(self, request: RequestState, attempt: AttemptState, placement: Placement, now_ns: int) -> StartLeg:
        decision = _decision(request, placement, now_ns)
        leg = StartLeg(
            request.request_id, attempt.number, 1, LegRole.WHOLE, attempt.target, decision, request.deadline_ns
        )
        if not isinstance(placement.state, PeerState):
            return leg
        crosses_regions = placement.state.spec.place.region != self.place.region
        return replace(leg, hops=request.hops.after(crosses_regions=crosses_regions), stamp=request.stamp)

    def _shadow_arrival(self, request_id: RequestId, now_ns: int) -> None:
        """Overflow would not have let it wait behind others; a shadow uses up no capacity, so bursts are overstated."""
        request = self.requests.get(request_id)
        if request is not None and request in self.waiting:
            self._record_shadow(request, now_ns)

    def _record_shadow(self, request: RequestState, now_ns: int) -> None:
        """Once per request: what overflow would have done for it."""
        if request.was_shadowed:
            return
        placement = self.placer.shadow(request)
        if placement is not None:
            request.was_shadowed = True
            decision = _decision(request, placement, now_ns)
            self._effects.append(RecordShadow(request.request_id, placement.state.target, decision))

    def _count_start(self, request: RequestState, attempt: AttemptState, now_ns: int) -> None:
        key = (request.request_id, attempt.number)
        if isinstance(attempt.state, ReplicaState):
            self.replicas.started(attempt.state, key, now_ns)
        else:
            self.peers.started(attempt.state, key, now_ns)

    # Requests run

    def _running(self, request_id: RequestId, number: int) -> tuple[RequestState, AttemptState] | None:
        """The attempt of that number if it is the request's living one; a late answer from an old one gives nothing."""
        request = self.requests.get(request_id)
        if request is None or request.attempt is None or request.attempt.number != number:
            return None
        return request, request.attempt

    def _first_token(self, event: FirstToken, now_ns: int) -> None:
        running = self._running(event.request_id, event.attempt)
        if running is None:
            return
        request, attempt = running
        attempt.first_token = True
        key = (request.request_id, attempt.number)
        if isinstance(attempt.state, ReplicaState):
            self.placer.learn_first_token(request, attempt.kept_blocks, now_ns - attempt.started_ns)
            self.replicas.first_token(attempt.state, key, now_ns)
        else:
            self.peers.first_token(attempt.state, key, now_ns)
        if request.phase is Phase.RUNNING:
            self._timers.set(request.timer, request.deadline_ns)

    def _response_stored(self, event: ResponseStored) -> None:
        running = self._running(event.request_id, event.attempt)
        if running is not None:
            self.stored_responses.put(event.key, running[1].target)

    def _attempt_ended(self, event: LegEnded, now_ns: int) -> None:
        running = self._running(event.request_id, event.attempt)
        if running is None:
            return
        request, attempt = running
        request.attempt = None
        result, detail = event.result, event.detail
        if result is LegResult.CANCELLED and attempt.stop_detail:
            result = LegResult.REFUSED if attempt.is_withdrawn else LegResult.FAILED
            detail = attempt.stop_detail
        self._count_end(request, attempt, result, now_ns)
        if request.phase is Phase.ENDED:
            del self.requests[request.request_id]
            return
        request.last_failure = f"{attempt.target}: {detail or result}"
        match result:
            case LegResult.COMPLETED:
                self._end(request, Outcome.COMPLETED, "")
            case LegResult.CLIENT_ERROR:
                self._end(request, Outcome.CLIENT_ERROR, detail)
            case LegResult.CANCELLED:
                self._end(request, Outcome.ABANDONED, detail)
            case LegResult.FAILED | LegResult.BUSY | LegResult.REFUSED if attempt.first_token:
                self._end(request, Outcome.FAILED_MIDSTREAM, request.last_failure)
            case LegResult.FAILED:
                self._try_again_after_failure(request, attempt, now_ns)
            case LegResult.BUSY:
                self._try_again_after_busy(request, now_ns)
            case LegResult.REFUSED:
                self._try_again_after_refusal(request, attempt, event.refusal, now_ns)
            case _ as never:
                assert_never(never)

    def _count_end(self, request: RequestState, attempt: AttemptState, result: LegResult, now_ns: int) -> None:
        key = (request.request_id, attempt.number)
        if isinstance(attempt.state, ReplicaState):
            self.replicas.ended(attempt.state, key, result, now_ns)
        else:
            self.peers.ended(attempt.state, key, result, now_ns)

    def _try_again_after_failure(self, request: RequestState, attempt: AttemptState, now_ns: int) -> None:
        request.failures += 1
        if request.failures >= self.config.attempt.attempts_max:
            self._end(request, Outcome.FAILED_BEFORE_FIRST_BYTE, request.last_failure)
        elif not self._retry_budget.take():
            self._end(request, Outcome.FAILED_BEFORE_FIRST_BYTE, f"{request.last_failure}; retry budget spent")
        else:
            self._avoid(request, attempt)
            request.queue_deadline_ns = now_ns + self.config.queue.wait_max_ns
            self._wait_again(request, now_ns)

    def _try_again_after_busy(self, request: RequestState, now_ns: int) -> None:
        """The target was full: it is alive, so nothing was lost but time. The target itself rests for a while.

        Full again and again is no failure of anybody's: whoever asks may well be served a little later.
        """
        request.busy_answers += 1
        if request.busy_answers > self.config.attempt.refusals_max:
            self._end(request, Outcome.REJECTED_QUEUE_FULL, f"engines were full {request.busy_answers} times in a row")
        else:
            self._wait_again(request, now_ns)

    def _try_again_after_refusal(
        self, request: RequestState, attempt: AttemptState, refusal: RefusalReason | None, now_ns: int
    ) -> None:
        """Back to the old place in the queue. The snapshot forgets what it learnt from this forward."""
        assert isinstance(attempt.state, PeerState), "only peers refuse"
        if refusal is RefusalReason.UNKNOWN_RESPONSE:
            self._end(request, Outcome.REJECTED_UNKNOWN_RESPONSE, request.last_failure)
            return
        self.placer.retract(request, attempt.state, attempt.kept_blocks)
        request.refusals += 1
        if refusal in _RESIDENCY_REFUSALS:
            self._avoid(request, attempt)
        self._wait_again(request, now_ns)

    def _avoid(self, request: RequestState, attempt: AttemptState) -> None:
        old = request.request_class
        bit = 1 << attempt.state.slot
        if isinstance(attempt.state, ReplicaState):
            request.request_class = replace(old, failed_replicas=old.failed_replicas | bit)
        else:
            request.request_class = replace(old, failed_peers=old.failed_peers | bit)

    # Requests end

    def _request_abandoned(self, event: RequestAbandoned) -> None:
        request = self.requests.get(event.request_id)
        if request is not None and request.phase is not Phase.ENDED:
            self._end(request, Outcome.ABANDONED, "the client went away")

    def _end(self, request: RequestState, outcome: Outcome, detail: str) -> None:
        """End it for the client. The record stays until a living attempt has reported its end."""
        if request in self.waiting:
            self.waiting.leave(request)
        request.phase = Phase.ENDED
        self._timers.cancel(request.timer)
        if request.attempt is None:
            del self.requests[request.request_id]
        self._effects.append(EndRequest(request.request_id, outcome, detail, request.attempts))

    def _deadline_passed(self, request: RequestState, now_ns: int) -> None:
        attempt = request.attempt
        if attempt is None:
            waited_ms = (now_ns - request.arrived_ns) // 1_000_000
            because = f"; before that, {request.last_failure}" if request.last_failure else ""
            self._end(request, Outcome.EXPIRED_IN_QUEUE, f"no replica was free for {waited_ms} ms{because}")
        elif now_ns >= request.deadline_ns:
            self._effects.append(StopLeg(request.request_id, attempt.number, 1, "deadline"))
            self._end(request, Outcome.EXPIRED_RUNNING, f"deadline passed while running at {attempt.target}")
        elif not attempt.first_token and not attempt.stop_detail:
            attempt.stop_detail = "no first token before the deadline"
            self._effects.append(StopLeg(request.request_id, attempt.number, 1, attempt.stop_detail))
            self._timers.set(request.timer, request.deadline_ns)

    # The fleet changes

    def _target_lost(self, event: TargetLost, now_ns: int) -> None:
        if event.target.kind is TargetKind.REPLICA:
            self.replicas.lose(ReplicaId(event.target.id), event.detail, now_ns)
        else:
            self.peers.lose(GatewayId(event.target.id), event.detail, now_ns)

    def _config_applied(self, event: ConfigApplied, now_ns: int) -> None:
        if event.config.attempt != self.config.attempt:
            self._retry_budget = RetryBudget(event.config.attempt)
        self.config = event.config
        self.replicas.configure(event.config, now_ns)
        self.peers.configure(event.config, now_ns)
        self.placer.configure(event.config.placement)
        self.stored_responses.configure(event.config.placement.stored_responses_max)

    def _policy_applied(self, event: PolicyApplied) -> None:
        """What waits is judged again under the new policy; what runs finishes under its stamp."""
        assert event.policy.place == self.place, "a policy of another place"
        self.policy = event.policy
        self._judge_waiting_again()

    def _judge_waiting_again(self) -> None:
        for request in list(self.waiting):
            self.waiting.leave(request)
            self._judge_again(request)
            if request.phase is not Phase.ENDED:
                self.waiting.join(request)

    def _judge_again(self, request: RequestState) -> None:
        """Hold a request that is not in the queue against the policy of this moment; it may end here."""
        if request.origin_gateway_id is None:
            self._judge_own(request)
        else:
            self._judge_forwarded(request)

    def _judge_own(self, request: RequestState) -> None:
        tenant = request.profile.tenant
        ingress = may_enter(self.policy, tenant, request.profile.process)
        if not ingress.allowed:
            self._end(request, Outcome.REJECTED_RESIDENCY_INGRESS, ingress.why)
            return
        request.stamp = ResidencyStamp(self.place, tenant, self._rule_of(request.profile), self.policy.digest)
        self._classify_again(request)

    def _judge_forwarded(self, request: RequestState) -> None:
        refusal = refusal_of(self.policy, request.stamp)
        if refusal is not None or self.locked_down:
            why = refusal[1] if refusal else "an operator has stopped all forwarding"
            self._end(request, Outcome.FAILED_BEFORE_FIRST_BYTE, f"no longer accepted here: {why}")
            return
        self._classify_again(request)

    def _classify_again(self, request: RequestState) -> None:
        old = request.request_class
        fresh = self._class_of(request.profile, request.stamp.rule, request.hops)
        gave_up_peers = request.refusals >= max(self.config.attempt.refusals_max, 1)
        request.request_class = replace(
            fresh,
            may_stay_in_region=fresh.may_stay_in_region and not gave_up_peers,
            may_cross_regions=fresh.may_cross_regions and not gave_up_peers,
            failed_replicas=old.failed_replicas,
            failed_peers=old.failed_peers,
            pinned=old.pinned,
        )

    def _lockdown_changed(self, event: LockdownChanged) -> None:
        """Forwards that gave no token yet are taken back and wait at home; with `cut`, streams end too."""
        self.locked_down = event.active
        self._judge_waiting_again()
        if not event.active:
            return
        for request in list(self.requests.values()):
            if request.phase is Phase.RUNNING:
                self._withdraw(request, cut=event.cut)

    def _withdraw(self, request: RequestState, *, cut: bool) -> None:
        """Close an attempt that crosses gateways, in whichever direction. No target is at fault."""
        attempt = request.attempt
        assert attempt is not None, "it runs"
        if attempt.stop_detail or (attempt.first_token and not cut):
            return
        detail = "an operator has stopped all forwarding"
        if request.origin_gateway_id is not None:
            self._effects.append(StopLeg(request.request_id, attempt.number, 1, detail))
            began = attempt.first_token
            self._end(request, Outcome.FAILED_MIDSTREAM if began else Outcome.FAILED_BEFORE_FIRST_BYTE, detail)
        elif isinstance(attempt.state, PeerState):
            attempt.stop_detail = detail
            attempt.is_withdrawn = True
            self._effects.append(StopLeg(request.request_id, attempt.number, 1, detail))

    def _assignment_applied(self, event: AssignmentApplied, now_ns: int) -> None:
        if event.version <= self.assignment_version:
            return
        self.assignment_version = event.version
        joined_replicas, left_replicas = self.replicas.assign(event.replicas, now_ns)
        self.placer.replicas_changed(joined_replicas, left_replicas)
        joined_peers, left_peers = self.peers.assign(event.peers)
        self.placer.peers_changed(joined_peers, left_peers)

    # Time

    def _fire_timers(self, now_ns: int) -> None:
        for timer in self._timers.pop_due(now_ns):
            match timer.kind:
                case TimerKind.REQUEST:
                    self._deadline_passed(self.requests[RequestId(timer.id)], now_ns)
                case TimerKind.REPLICA:
                    self.replicas.wake(ReplicaId(timer.id), now_ns)
                case TimerKind.PEER:
                    self.peers.wake(GatewayId(timer.id), now_ns)
                case TimerKind.PUBLISH:
                    pass  # looked at after every event
                case _ as never:
                    assert_never(never)

    def _publish_if_due(self, now_ns: int) -> None:
        """Heartbeats go out on change, at most once per interval, and as a keep-alive."""
        observation = self.config.observation
        due_ns = self._published_ns + observation.publish_interval_ns
        keep_alive_ns = self._published_ns + observation.keep_alive_ns
        if self._published is None or now_ns >= keep_alive_ns:
            self._publish(now_ns)
        elif now_ns < due_ns:
            if self._publishable_state() != self._published_state:
                self._timers.set_earlier(self._publish_timer, due_ns)
        elif self._publishable_state() != self._published_state and self._is_news(self._published):
            self._publish(now_ns)
        else:
            self._timers.set_earlier(self._publish_timer, keep_alive_ns)

    def _is_news(self, last: LoadReport) -> bool:
        """Would a peer that looks for a place see anything else in what we would say now?"""
        share = self.config.observation.publish_change_share
        return not share or self._report(last.sequence).is_news_after(last, share)

    def _publishable_state(self) -> tuple[object, ...]:
        """Cheap to compare: what a report is made of has changed only if one of these has."""
        return (
            self.replicas.available,
            self.replicas.version,
            tuple(self.waiting.lengths().items()),
            self.draining,
            self.locked_down,
            self.assignment_version,
            self.policy.digest,
        )

    def _publish(self, now_ns: int) -> None:
        self._published = self._report(self._published.sequence + 1 if self._published else 1)
        self._published_ns = now_ns
        self.placer.expire_prefixes(now_ns)
        self._published_state = self._publishable_state()
        self._timers.set(self._publish_timer, now_ns + self.config.observation.keep_alive_ns)
        self._effects.append(PublishLoad(self._published))

    def _report(self, sequence: int) -> LoadReport:
        return LoadReport(
            self.gateway_id,
            self.place,
            sequence,
            accepting=not (self.draining or self.locked_down or self.policy.closed_reason),
            assignment_version=self.assignment_version,
            policy_digest=self.policy.digest,
            capacities=self.replicas.capacities(),
            queues=tuple(ModelQueue(model, length) for model, length in self.waiting.lengths().items()),
        )

    # What may be looked at

    def gauges(self, now_ns: int) -> CoreGauges:
        return CoreGauges(
            queue_length=len(self.waiting),
            requests=len(self.requests),
            attempts=sum(request.attempt is not None for request in self.requests.values()),
            prefix_index_bytes=self.placer.replica_index.size_bytes + self.placer.peer_index.size_bytes,
            prefix_index_blocks=self.placer.replica_index.blocks + self.placer.peer_index.blocks,
            replicas=len(self.replicas),
            replicas_available=self.replicas.available.bit_count(),
            peers=len(self.peers),
            peers_usable=self.peers.usable.bit_count(),
            probe_age_ns={
                state.spec.replica_id: now_ns - state.sampled_ns
                for state in self.replicas
                if state.sampled_ns is not None
            },
            heartbeat_age_ns={
                state.spec.gateway_id: now_ns - state.observation.generated_ns
                for state in self.peers
                if state.observation is not None
            },
        )

    def describe(self, now_ns: int) -> dict[str, object]:
        """The whole state in plain words and numbers, for an operator. No request content is in here to be shown."""
        return {
            "gateway": self.gateway_id,
            "region": self.place.region,
            "jurisdiction": self.place.jurisdiction,
            "draining": self.draining,
            "lockdown": self.locked_down,
            "policy": {"digest": self.policy.digest, "closed_reason": self.policy.closed_reason},
            "assignment_version": self.assignment_version,
            "placement_policy": self.config.placement.policy,
            "pushing": self.config.pushing.mode,
            "overflow": self.config.placement.overflow,
            "overflow_by_model": dict(self.config.placement.overflow_by_model),
            "requests": len(self.requests),
            "stored_responses": len(self.stored_responses),
            "queue": {"length": len(self.waiting), "by_model": self.waiting.lengths()},
            "replicas": [_describe_replica(state, self.replicas, now_ns) for state in self.replicas],
            "peers": [_describe_peer(state, self.peers, now_ns) for state in self.peers],
            "prefix_index": {
                "replicas": _describe_index(self.placer.replica_index),
                "peers": _describe_index(self.placer.peer_index),
            },
        }


def _decision(request: RequestState, placement: Placement, now_ns: int) -> Decision:
    return Decision(
        placement.reason,
        placement.matched_blocks,
        request.profile.prefix_blocks,
        placement.candidates,
        waited_ns=now_ns - request.arrived_ns,
        considered=placement.considered,
    )


def _describe_replica(state: ReplicaState, replicas: Replicas, now_ns: int) -> dict[str, object]:
    return {
        "id": state.spec.replica_id,
        "region": state.spec.place.region,
        "pool": state.spec.pool,
        "models": list(state.spec.models),
        "available": bool(replicas.available >> state.slot & 1),
        "standing": state.standing,
        "healthy": state.healthy,
        "detail": state.detail,
        "running": state.running,
        "pending": state.waiting,
        "kv_usage": state.kv_usage,
        "in_flight": state.in_flight,
        "unreflected": len(state.unreflected),
        "breaker": state.breaker.state,
        "ramp_limit": state.ramp.limit,
        "probe_age_ms": None if state.sampled_ns is None else (now_ns - state.sampled_ns) / 1e6,
    }


def _describe_peer(state: PeerState, peers: Peers, now_ns: int) -> dict[str, object]:
    observation = state.observation
    return {
        "id": state.spec.gateway_id,
        "region": state.spec.place.region,
        "jurisdiction": state.spec.place.jurisdiction,
        "usable": bool(peers.usable >> state.slot & 1),
        "standing": state.standing,
        "lost": state.lost,
        "detail": state.detail,
        "accepting": observation is not None and observation.report.accepting,
        "in_flight": state.in_flight,
        "unreflected": len(state.unreflected),
        "breaker": state.breaker.state,
        "rtt_ms": None if observation is None else observation.rtt_ns / 1e6,
        "heartbeat_age_ms": None if observation is None else (now_ns - observation.generated_ns) / 1e6,
        "models": []
        if observation is None
        else [
            {
                "model": capacity.model,
                "pool": capacity.pool,
                "region": capacity.place.region,
                "replicas": capacity.replicas,
                "available": capacity.available,
                "queue_length": state.queue_lengths.get(capacity.model, 0),
            }
            for capacity in observation.report.capacities
        ],
    }


def _describe_index(index: PrefixIndex) -> dict[str, int]:
    return {"bytes": index.size_bytes, "blocks": index.blocks, "records": index.records, "nodes": index.nodes}
