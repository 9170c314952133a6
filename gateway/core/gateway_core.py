"""The gateway's decision maker: events in, effects out. It never waits, reads a clock or does I/O.

Read `handle` first. Each event has one method, and after every event all waiting requests that can be placed are
placed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, assert_never

from gateway.core.config import CoreConfig
from gateway.core.events import ConfigApplied, Event
from gateway.core.features.catalogue import features_of
from gateway.core.kernel.attempts import RetryBudget
from gateway.core.kernel.deadlines import Deadlines
from gateway.core.kernel.effects import (
    AcceptForward,
    Effect,
    EndRequest,
    PublishLoad,
    RefuseForward,
)
from gateway.core.kernel.events import (
    AssignmentApplied,
    DrainLifted,
    DrainRequested,
    FeatureEvent,
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
)
from gateway.core.kernel.feasibility import waits_for, why_never_again
from gateway.core.kernel.feature import Hooks
from gateway.core.kernel.kernel import Features, Kernel
from gateway.core.kernel.legs import Legs
from gateway.core.kernel.placing import Placing
from gateway.core.kernel.publishing import Publisher
from gateway.core.kernel.reevaluation import Reevaluation
from gateway.core.kernel.request_class import RequestClass
from gateway.core.kernel.requests import AttemptState, LegState, Phase, RequestRecord, RequestState, Size
from gateway.core.kernel.retries import Retries
from gateway.core.kernel.take_backs import TakeBacks
from gateway.core.kernel.targets import Targets
from gateway.core.kernel.timers import TimerKind
from gateway.core.placement.policy import PlugIns, no_plug_ins
from gateway.core.vocabulary import (
    GatewayId,
    Hops,
    ModelName,
    Outcome,
    Place,
    PlaceRule,
    RegionName,
    RequestId,
    RequestProfile,
    ResidencyStamp,
    Target,
    TargetKind,
    TenantName,
)

_NO_HOPS = Hops()
_FULL = frozenset({Outcome.REJECTED_QUEUE_FULL, Outcome.REJECTED_TENANT_LIMIT})


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
        self.config = CoreConfig()
        self._publisher = Publisher(self)
        self._reevaluation = Reevaluation(self)
        self._retries = Retries(self)
        self._deadlines = Deadlines(self, self._retries)
        self._legs = Legs(self, self._retries)
        self._placing = Placing(self)
        self._take_backs = TakeBacks(self, self._reevaluation)
        self._now_ns: int | None = None
        self._afterwards: list[Callable[[int], None]] = []
        """Steps to take once waiting requests are placed."""
        self.arrived: RequestRecord | None = None
        """Record of the request that arrived last, for its owner."""
        self._arrivals = 0
        self.features = tuple(features(self))
        self.features_changed()

    # Entry points

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """Take in one event and return the effects to carry out, in order.

        Timers that are due fire first; then the event's own method runs, decode workers are chosen for prefilled
        requests, and waiting requests are placed. A request that has just arrived and must wait is checked against full
        queues and its objective; steps that were put off until then follow. Last, a heartbeat is published if one is
        due. `now_ns` never goes backwards.
        """
        assert self._now_ns is None or now_ns >= self._now_ns, "time went backwards"
        self._now_ns = now_ns
        self.effects = []
        for feature in self.hooks.begins:
            feature.begins(now_ns)
        if self.timers.may_be_due(now_ns):
            self._fire_timers(now_ns)
        self._take_in(event, now_ns)
        for feature in self.hooks.before_placing:
            feature.before_placing(now_ns)
        self._placing.place_waiting(now_ns)
        if isinstance(event, (RequestArrived, ForwardArrived)):
            self._look_after_newcomer(event, now_ns)
        if self._afterwards:
            steps, self._afterwards = self._afterwards, []
            for step in steps:
                step(now_ns)
        report = self._publisher.due(now_ns)
        if report is not None:
            self.placer.expire_prefixes(now_ns)
            self.effects.append(PublishLoad(report))
        return self.effects

    def next_wakeup_ns(self) -> int | None:
        """Time at which TimePassed is wanted next, if no other event comes first."""
        return self.timers.next_ns()

    # Queries

    def may_enter(self, tenant: TenantName, process: PlaceRule | None) -> bool:
        """True if this region may see requests of this tenant; `process` is the rule of the client's key, which may
        narrow where they are processed."""
        return self.admission.ingress_of(tenant, process).allowed

    def models_for(self, tenant: TenantName, process: PlaceRule | None) -> list[ModelName]:
        """Models that a client of this tenant could request and be served; `process` is the rule of its key."""
        return self.admission.models_for(tenant, process)

    def batch_rooms(self, model: ModelName, tenant: TenantName, process: PlaceRule | None) -> dict[RegionName, int]:
        """Requests of class `batch` by a client of this tenant that could run at once beside what runs, by region."""
        return self.admission.batch_rooms(model, tenant, process)

    def first_served(
        self, names: Sequence[ModelName], tenant: TenantName, process: PlaceRule | None, follows: str
    ) -> ModelName | None:
        """First of these models, in order of preference, that a client of this tenant is served; None: no gateway
        serves any."""
        return self.admission.first_served(names, tenant, process, follows)

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
                self._legs.first_token(event, now_ns)
            case LegEnded():
                self._legs.leg_ended(event, now_ns)
            case ReplicasObserved():
                for observation in event.observations:
                    self.replicas.observe(observation, now_ns)
                for feature in self.hooks.observe:
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
            case ResponseStored():
                self._response_stored(event)
            case TimePassed():
                pass  # due timers have fired already
            case _:
                self._take_in_elsewhere(event, now_ns)

    def _take_in_elsewhere(self, event: FeatureEvent, now_ns: int) -> None:
        """Pass an event to the feature whose own it is."""
        for feature in self.features:
            if feature.take_in(event, now_ns):
                return
        raise AssertionError(f"no feature takes in {event!r}")

    def _response_stored(self, event: ResponseStored) -> None:
        """Tell features which target stores an answer, if its leg is still known."""
        attempt = self.attempt_of(event.request_id, event.attempt)
        leg = None if attempt is None else attempt.legs.get(event.leg)
        if leg is not None:
            for feature in self.hooks.stored:
                feature.stored(leg, event.key)

    # Arrivals

    def _request_arrived(self, event: RequestArrived, now_ns: int) -> None:
        """Admit a client's request, or end it at once: by residency, drain, unknown model, full queue, or a
        feature."""
        profile = event.profile
        assert profile.request_id not in self.requests, f"{profile.request_id} arrived twice"
        self.arrived = record = RequestRecord(event, self.policy, now_ns)
        size = self.size_of(profile)
        admittance = self.admission.admittance_of(profile, size)
        rejection = self.admission.rejection_of(profile, admittance)
        if rejection is not None:
            outcome, detail = rejection
            after_ns = self.drain_rates.clears_ns(self.waiting, profile.model, now_ns) if outcome in _FULL else 0
            self._reject(profile, record, outcome, detail, after_ns)
            return
        for feature in self.hooks.reject:
            rejected = feature.reject(profile, now_ns)
            if rejected is not None:
                self._reject(profile, record, rejected.outcome, rejected.detail, rejected.retry_after_ns)
                return
        stamp = ResidencyStamp(self.place, profile.tenant, admittance.rule, self.policy.digest)
        self._admit(event, record, admittance.request_class, stamp, now_ns, size=size)

    def _reject(
        self, profile: RequestProfile, record: RequestRecord, outcome: Outcome, detail: str, retry_after_ns: int
    ) -> None:
        """End a client's request that is not admitted."""
        record.end = EndRequest(profile.request_id, outcome, detail, attempts=0, retry_after_ns=retry_after_ns)
        self.effects.append(record.end)
        self.goodput.refused(profile)

    def _forward_arrived(self, event: ForwardArrived, now_ns: int) -> None:
        """Accept or refuse a request that another gateway forwarded; an accepted one is admitted like a client's."""
        request_id = event.profile.request_id
        self.arrived = record = RequestRecord(event, self.policy, now_ns)
        size, stamp = self.size_of(event.profile), event.stamp
        request_class = self.admission.class_of(event.profile, stamp.rule, event.hops, stamp.origin, size=size)
        refusal = self.admission.refusal_of(event, request_class, now_ns)
        if refusal is not None:
            reason, detail = refusal
            record.refusal = refused = RefuseForward(request_id, reason, detail)
            self.effects.append(refused)
            return
        self.effects.append(AcceptForward(request_id))
        self._admit(
            event,
            record,
            request_class,
            stamp,
            now_ns,
            hops=event.hops,
            origin_gateway_id=event.origin_gateway_id,
            size=size,
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
        size: Size | None = None,
    ) -> None:
        """Open a request, and queue it; the only one that waits is kept aside, to be placed without being queued."""
        self._arrivals += 1
        request = RequestState(
            event.profile,
            request_class,
            record=record,
            arrival_number=self._arrivals,
            arrived_ns=now_ns,
            deadline_ns=event.deadline_ns,
            queue_deadline_ns=now_ns + self.config.queue.wait_max_ns,
            stamp=stamp,
            hops=hops,
            origin_gateway_id=origin_gateway_id,
            size=size,
        )
        for feature in self.hooks.admitted:
            feature.admitted(request, event, now_ns)
        self.requests[request.request_id] = request
        if self.waiting.count or request_class.fit is not None or now_ns >= request.next_deadline_ns:
            self.wait(request, now_ns)
        else:
            for feature in self.hooks.joined:
                feature.joined(request)
            self._placing.newcomer = request

    # Waiting and placement

    def wait(self, request: RequestState, now_ns: int) -> None:
        """Queue a request and set its timer. One whose deadline has come already ends."""
        self.start_waiting(request)
        if now_ns >= request.next_deadline_ns:
            self._deadlines.passed(request, now_ns)
        else:
            self.timers.set(request.timer, request.wakes_ns)

    def wait_again(self, request: RequestState, now_ns: int) -> None:
        """Queue a request again after a failed attempt, at its old place, under the policy in force rather than that of
        its last attempt. It ends instead if no known target could ever serve it."""
        self._reevaluation.reevaluate(request)
        if request.phase is Phase.ENDED:
            return
        never = why_never_again(self, request)
        if never is not None:
            self.end(request, *never)
            return
        request.move_to(Phase.WAITING)
        self.wait(request, now_ns)

    def _look_after_newcomer(self, event: RequestArrived | ForwardArrived, now_ns: int) -> None:
        """Check a request that has just arrived and must wait. It ends at once if the queue is overfull, or, as a
        client's own request, if its first token would come too late."""
        request = self.requests.get(event.profile.request_id)
        if request is None or request.phase is not Phase.WAITING:
            return
        self.drain_rates.waits(self.waiting, request, now_ns)
        overfull = self.admission.overfullness_for(event.profile)
        if overfull is not None:
            clears_ns = self.drain_rates.clears_ns(self.waiting, request.profile.model, now_ns)
            self.end(request, *overfull, retry_after_ns=clears_ns)
        elif isinstance(event, RequestArrived):
            late = None
            given = self.placer.eligibility.slots_given(request.request_class)
            if given < self.waiting.interactive_length(request.profile.model):
                late = self.drain_rates.lateness(self.waiting, request, self.promised_ns(request), now_ns)
            if late is not None:
                self.end(request, Outcome.REJECTED_DEADLINE, late.detail, retry_after_ns=late.retry_after_ns)
            else:
                for feature in self.hooks.newcomer_waits:
                    feature.newcomer_waits(request, now_ns)

    # Ends of requests

    def _request_abandoned(self, event: RequestAbandoned) -> None:
        """End a request whose client, or the origin that forwarded it, has gone away."""
        request = self.requests.get(event.request_id)
        if request is not None and request.phase is not Phase.ENDED:
            self.end(request, Outcome.ABANDONED, "the client went away")

    def end(self, request: RequestState, outcome: Outcome, detail: str, *, retry_after_ns: int = 0) -> None:
        """End the request for its client. Its state stays until each living leg has reported its end."""
        if request.is_queued:
            self.stop_waiting(request)
        self.drain_rates.left(self.waiting, request.profile.model)
        request.move_to(Phase.ENDED)
        assert self._now_ns is not None, "something has happened"
        self.timers.cancel(request.timer)
        attempt = request.attempt
        if attempt is not None and attempt.is_between_legs and attempt.planner is not None:
            attempt.planner.withdraw(request, attempt)
        if attempt is None or not (attempt.legs or attempt.is_between_legs):
            self.forget(request)
        end = EndRequest(request.request_id, outcome, detail, request.attempts, retry_after_ns=retry_after_ns)
        for feature in self.hooks.ends:
            feature.ends(request, end, self._now_ns)
        request.record.end = end
        self.effects.append(end)
        self.goodput.ended(request, end.outcome, self.promised_ns(request), self._now_ns)

    def lapse(self, request: RequestState, attempt: AttemptState, why: str, now_ns: int) -> None:
        self._retries.lapse(request, attempt, why, now_ns)

    def reevaluate_waiting(self) -> None:
        self._reevaluation.reevaluate_waiting()

    def take_back_legs(
        self, legs: list[tuple[RequestState, LegState]], details: Mapping[Target, str], now_ns: int
    ) -> None:
        self._take_backs.from_leaving(legs, details, now_ns)

    def after_placing(self, step: Callable[[int], None]) -> None:
        if step not in self._afterwards:
            self._afterwards.append(step)

    def pools_changed(self) -> None:
        self._reevaluation.pools_changed()

    # Fleet, config and policy changes

    def _peers_observed(self, event: PeersObserved, now_ns: int) -> None:
        """Take in heartbeats. A change of what peers serve counts as a change of pools."""
        served_version = self.peers.served_version
        for heartbeat in event.observations:
            self.peers.observe(heartbeat, now_ns)
        if self.peers.served_version != served_version:
            self.features_changed()
            self.pools_changed()

    def _target_lost(self, event: TargetLost, now_ns: int) -> None:
        """Mark a target as lost at once. The legs at a silent one are taken back as far as that saves requests; those
        of a broken connection end by themselves."""
        targets: Targets[Any, Any] = self.replicas if event.target.kind is TargetKind.REPLICA else self.peers
        targets.lose(event.target.id, event.detail, now_ns)
        if event.is_silent:
            self._take_backs.from_silent(event.target, event.detail, now_ns)

    def _config_applied(self, event: ConfigApplied, now_ns: int) -> None:
        """Apply new settings to every part. Held requests are released and placed anew."""
        if event.config.attempt != self.config.attempt:
            self.retry_budget = RetryBudget(event.config.attempt)
        self.config = event.config
        self.replicas.configure(event.config, now_ns)
        for feature in self.features:
            feature.configure(event.config, now_ns)
        self.peers.configure(event.config, now_ns)
        for request in [each for each in self.waiting if each.held is not None]:
            self.unhold(request)
        self.placer.configure(event.config.placement)
        self.features_changed()
        self._reevaluation.reject_hopeless()

    def _policy_applied(self, event: PolicyApplied) -> None:
        """Judge waiting requests again under the new policy; running ones finish under their stamps."""
        assert event.policy.place == self.place, "a policy of another place"
        self.policy = event.policy
        self.rules_version += 1
        for feature in self.features:
            feature.apply_policy(event.policy)
        self.reevaluate_waiting()

    def _assignment_applied(self, event: AssignmentApplied, now_ns: int) -> None:
        """Own exactly the assigned replicas and know the assigned peers; an old version is ignored."""
        if event.version <= self.assignment_version:
            return
        self.assignment_version = event.version
        self.rules_version += 1
        self.control = event.control
        joined_replicas, left_replicas = self.replicas.assign(event.replicas, now_ns, event.pools)
        for state in left_replicas:
            self.waiting.release(state.slot)  # the policy forgets these holds with the replica
        self.placer.replicas_changed(joined_replicas, left_replicas)
        for feature in self.features:
            feature.assign(event, joined_replicas, left_replicas, now_ns)
        joined_peers, left_peers = self.peers.assign(event.peers)
        self.placer.peers_changed(joined_peers, left_peers)
        self.features_changed()
        for feature in self.features:
            feature.assigned(now_ns)
        self._reevaluation.find_failures_again()
        self.pools_changed()

    def features_changed(self) -> None:
        """Note which features are on."""
        self.hooks = Hooks(self.features)

    # Timers

    def _fire_timers(self, now_ns: int) -> None:
        """Act on each timer that is due."""
        for timer in self.timers.pop_due(now_ns):
            match timer.kind:
                case TimerKind.REQUEST:
                    self._deadlines.passed(self.requests[RequestId(timer.id)], now_ns)
                case TimerKind.REPLICA:
                    self.replicas.wake(timer.id, now_ns)
                case TimerKind.PEER:
                    self.peers.wake(timer.id, now_ns)
                case TimerKind.FEATURE:
                    for feature in self.features:
                        feature.wake(timer.id, now_ns)
                case TimerKind.PUBLISH:
                    pass  # looked at after every event
                case _ as never:
                    assert_never(never)
