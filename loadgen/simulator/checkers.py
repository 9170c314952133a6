"""Invariants of a whole mesh, checked by an oracle that records what each gateway was told and judges by rules of its
own. It reads a core's state only where it cannot work out the fact itself.

Besides, the core's own invariants are checked after every event. The first violation ends the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from gateway.core import events
from gateway.core.config import all_of
from gateway.core.events import Event
from gateway.core.features.disaggregated.catalogue import BUILT_IN
from gateway.core.features.disaggregated.config import decode_of, written_decode
from gateway.core.features.disaggregated.feature import decode_pools_of
from gateway.core.features.expert_locality.catalogue import BY_EXPERTS
from gateway.core.features.resume.counts import resumes_in
from gateway.core.gateway_core import GatewayCore
from gateway.core.invariants import Checker
from gateway.core.kernel.attempts import BreakerState
from gateway.core.kernel.bits import slots_of
from gateway.core.kernel.config import OverflowMode, PeerAvailability, PushingMode
from gateway.core.kernel.effects import AcceptForward, Effect, EndRequest, RefuseForward, StartLeg, StopLeg
from gateway.core.kernel.requests import Phase, RequestState
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import (
    ALL_CONNECTORS,
    Connector,
    GatewayId,
    LegResult,
    LegRole,
    LoadReport,
    ModelCapacity,
    ModelName,
    Outcome,
    PeerObservation,
    Place,
    PlaceRule,
    PoolName,
    PoolSpec,
    RefusalReason,
    RegionName,
    ReplicaId,
    ReplicaObservation,
    ReplicaRole,
    ReplicaSpec,
    RequestId,
    RequestProfile,
    ServiceClass,
    Standing,
    Target,
    TargetKind,
    TenantName,
)
from loadgen.engine.tokens import TOKEN_BYTES
from loadgen.simulator.client_requests import ClientRequest
from loadgen.simulator.engines import SimReplica
from loadgen.simulator.observers import GatewaySpec

_DISHONEST = frozenset({RefusalReason.HOP_LIMIT, RefusalReason.RESIDENCY_STAMP})
"""Reasons for which a forward of an honest gateway is never refused."""
_AHEAD = 4
"""Forwards beyond a peer's room, for each request that leaves its slots meanwhile (docs/concepts/placement.md)."""
_IDLE_NS = 10_000_000_000
"""Longest wait of a request beside an engine that it may use and that has been idle for as long."""
_RESIDENCY_REFUSALS = frozenset({RefusalReason.RESIDENCY_NOT_ACCEPTED, RefusalReason.RESIDENCY_STAMP})
"""Refusals for reasons of residency; listed here, because the core is judged by them."""


_Queue = tuple[TenantName, Place | None, bool, bool, ServiceClass, bool]
_PARTS = {
    LegRole.WHOLE: ReplicaRole.UNIFIED,
    LegRole.PREFILL: ReplicaRole.PREFILL,
    LegRole.DECODE: ReplicaRole.DECODE,
}
"""Replica role that each leg role needs."""
_DECODE_POLICIES = BUILT_IN | BY_EXPERTS


_TURNED_AWAY = frozenset({Outcome.REJECTED_UNSUPPORTED, Outcome.REJECTED_RESIDENCY_PROCESSING})
"""Permitted outcomes of a request that could run only in another region, which need not take it."""


class Broken(Exception):
    """Violation of an invariant."""

    def __init__(self, now_ns: int, what: str, detail: str) -> None:
        super().__init__(now_ns, what, detail)
        self.now_ns = now_ns
        self.what = what
        self.detail = detail

    def __str__(self) -> str:
        return f"at {self.now_ns / 1e9:.6f} s: {self.what}: {self.detail}"


@dataclass(slots=True)
class _Visit:
    """One request at one gateway, as observed from outside."""

    arrival: int
    arrived_ns: int
    tenant: TenantName
    origin: Place | None
    """Place of the gateway that forwarded it; None for a client's request."""
    came_across: bool = False
    follows: str = ""
    """Stored response that it continues."""
    is_rest: bool = False
    """True if its answer had begun before it came to this gateway."""
    request_id: RequestId | None = None
    waits: bool = True
    is_ordinary: bool = True
    """True if it may go wherever its queue's requests may go, and so waits in that queue."""
    is_patient: bool = False
    """True if a policy may let it wait beside an idle engine."""
    failed_at: set[str] = field(default_factory=set)
    """Ids of the targets where it may have failed: it may wait even if these are idle."""
    refusals: int = 0
    attempt: int = 0
    legs: dict[int, int] = field(default_factory=dict)
    """Live legs of its present attempt, each with the time at which it began."""
    reading: set[int] = field(default_factory=set)
    """Legs of its present attempt that only compute the prompt, live or ended."""
    read_by: Target | None = None
    """Prefill worker that computes or has computed the prompt in this attempt."""
    decodes: bool = False
    """True if a decode worker was asked for the answer in this attempt."""
    is_pooled: bool = False
    """True while its prompt has been computed and no decode worker has it."""
    connectors: frozenset[Connector] = ALL_CONNECTORS
    """Connectors over which its KV cache can be handed over."""
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    first_token: bool = False
    segment: int = 0
    """Number of times that its answer was continued."""
    resumes_left: int = 1 << 62
    """Limit of continuations, as set by the gateway that forwarded it."""
    rule: PlaceRule = field(default_factory=PlaceRule)
    """Places allowed for its next attempt: a forward keeps the stamp it came with, whatever its origin does later."""

    @property
    def queue(self) -> _Queue:
        can_hand_over = bool(self.connectors)
        return self.tenant, self.origin, self.came_across, can_hand_over, self.service_class, self.is_patient


@dataclass(slots=True)
class _View:
    """Record of what one gateway was told in its present life."""

    spec: GatewaySpec
    policy: ResidencyPolicy
    core: GatewayCore
    places: dict[str, Place]
    """Places of its replicas and peers, by id."""
    replicas: tuple[ReplicaSpec, ...] = ()
    """Replicas assigned to it."""
    pools: dict[PoolName, PoolSpec] = field(default_factory=dict)
    """Pools of its assignment that have properties beside a name."""
    accepts: dict[str, PlaceRule | None] = field(default_factory=dict)
    """Rule for the origins that each replica accepts; None: every origin."""
    away: frozenset[ModelName] = frozenset()
    """Models that it serves when its own replicas are home."""
    visits: dict[RequestId, _Visit] = field(default_factory=dict)
    waiting: dict[_Queue, dict[RequestId, int]] = field(default_factory=dict)
    """Waiting requests of each queue, with their arrival numbers."""
    probes: dict[ReplicaId, ReplicaObservation] = field(default_factory=dict)
    heard: dict[GatewayId, PeerObservation] = field(default_factory=dict)
    serves: dict[GatewayId, tuple[ModelCapacity, ...]] = field(default_factory=dict)
    """Capacities that each peer reported last. A peer without any has only begun, or is between two assignments."""
    alive: dict[tuple[RequestId, int, int], Target] = field(default_factory=dict)
    """Live legs and their targets."""
    stopped: set[tuple[RequestId, int, int]] = field(default_factory=set)
    """Live legs that were ordered to stop."""
    uncounted: dict[tuple[RequestId, int, int], tuple[GatewayId, int]] = field(default_factory=dict)
    """Forwards that no heartbeat of their peer counts yet: the peer, and when each was sent."""
    in_flight: Counter[ReplicaId] = field(default_factory=Counter)
    leaving: dict[ReplicaId, int | None] = field(default_factory=dict)
    """Time by which each replica was announced to leave, until it is down after that; None: it was not announced."""
    failed: set[Target] = field(default_factory=set)
    """Targets at which a leg may have failed."""
    stored: dict[str, Target] = field(default_factory=dict)
    """Target that keeps each stored response, as far as this gateway can know."""
    held: frozenset[RequestId] = frozenset()
    """Requests that were held for a replica when the latest event came."""
    arrivals: int = 0
    reserved: frozenset[RegionName] | None = None
    """Regions whose replicas are paid for anyway, by its prices; None: it knows none."""
    drains: bool = False
    is_locked_down: bool = False

    def observe(self, event: events.ReplicasObserved, now_ns: int) -> None:
        """Take in probes. A replica that is down after it was to leave, or was until now, has left."""
        for each in event.observations:
            before, self.probes[each.replica_id] = self.probes.get(each.replica_id), each
            leave_by_ns = self.leaving.get(each.replica_id)
            was_down = before is not None and not before.healthy
            if leave_by_ns is not None and (was_down or not each.healthy) and now_ns >= leave_by_ns:
                self.leaving[each.replica_id] = None

    def announce(self, event: events.ReplicaLeaves) -> None:
        if event.replica_id in self.leaving:
            self.leaving[event.replica_id] = event.leave_by_ns

    def spec_of(self, target: Target) -> ReplicaSpec | None:
        """Spec of a replica. None: the target is a peer."""
        if target.kind is not TargetKind.REPLICA:
            return None
        return next((spec for spec in self.replicas if spec.replica_id == target.id), None)

    def all_held(self) -> frozenset[RequestId]:
        waiting = self.core.waiting
        return frozenset(each.request_id for slot in slots_of(waiting.homes) for each in waiting.all_held_for(slot))

    def takes_part(self, spec: ReplicaSpec, connectors: frozenset[Connector]) -> bool:
        """True if such a request can be placed at this replica."""
        if spec.role is ReplicaRole.PREFILL:
            pool = self.pools.get(spec.pool)
            return pool is not None and pool.connector in connectors
        return spec.role is ReplicaRole.UNIFIED

    def alike(self, queue: _Queue, request_id: RequestId) -> dict[RequestId, int]:
        """Waiting requests of a queue that fit the same pools. The core is asked for each one's fit, which only it
        knows."""
        waiting, requests = self.waiting[queue], self.core.requests
        mine = requests.get(request_id)
        if mine is None or mine.request_class.fit is None:
            return waiting
        found = ((each, arrival, requests.get(each)) for each, arrival in waiting.items())
        fit = mine.request_class.fit
        return {
            each: arrival for each, arrival, other in found if other is None or other.request_class.fit in (None, fit)
        }

    def learn_prices(self, event: events.PricesChanged) -> None:
        prices = event.prices
        reserved = [each.region for each in prices.replicas if not each.is_per_use] if prices else []
        self.reserved = frozenset(reserved) if prices else None

    def waited_beside(self, visit: _Visit) -> set[ReplicaId]:
        """Ids of the replicas beside which a policy may let the request wait: for a patient one, those that are not
        known to be paid for anyway."""
        if self.reserved is None or not visit.is_patient:
            return set()
        return {each.replica_id for each in self.replicas if each.place.region not in self.reserved}

    def too_short_for(self, visit: _Visit) -> set[str]:
        """Ids of the replicas whose context is too short for the request, as far as the core knows."""
        request = None if visit.request_id is None else self.core.requests.get(visit.request_id)
        fit = None if request is None else request.request_class.fit
        if fit is None:
            return set()
        return {
            str(state.spec.replica_id)
            for state in self.core.replicas
            if state.spec.pool not in fit.pools or 0 < self.core.replicas.context_of(state) < fit.need_tokens
        }

    def takes_from(self, target_id: str, origin: Place | None) -> bool:
        accepts = self.accepts.get(target_id)
        return accepts is None or names_place(accepts, origin or self.spec.place)

    def rule_of(self, tenant: TenantName) -> PlaceRule:
        if self.policy.closed_reason and not self.policy.narrowed_by:
            return PlaceRule(regions=frozenset({self.spec.place.region}))
        own = self.policy.tenants.get(tenant)
        return own.process if own else self.policy.process


def names_place(rule: PlaceRule, place: Place) -> bool:
    """True if the rule allows the place. Restated here on purpose, independent of the core."""
    named = place.region in rule.regions or place.jurisdiction in rule.jurisdictions
    within = any(
        place.region in each.regions and place.jurisdiction in each.jurisdictions for each in rule.regions_within
    )
    return (named or within) and place.region not in rule.denied_regions


@dataclass(slots=True)
class CheckCounts:
    """Counters for the report."""

    placements: Counter[tuple[RegionName, RegionName, str]] = field(default_factory=Counter)
    """Placements by origin's region, target's region and reason."""
    refusals: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    attempts: Counter[str] = field(default_factory=Counter)
    held: Counter[str] = field(default_factory=Counter)
    """Requests held, by `time` (for the replica's time) or `cache` (for its cached prefix); counted only with every
    invariant checked."""
    resumes: int = 0
    """Attempts to continue an answer that broke."""


class InvariantWatch:
    """Observer of every event and effect of every gateway, and of every answer to a client."""

    def __init__(self, *, every_invariant: bool) -> None:
        self.counts = CheckCounts()
        self._every_invariant = every_invariant
        """Check the whole core after each event, and follow each request: thorough, and slow on a large fleet."""
        self._views: dict[GatewayId, _View] = {}
        self._checkers: dict[GatewayId, Checker] = {}
        self._stamped: dict[RequestId, set[PlaceRule]] = {}
        """Rules under which each request was sent on from its ingress gateway; each attempt keeps its own."""
        self._now_ns = 0

    def on_start(self, spec: GatewaySpec, policy: ResidencyPolicy, core: GatewayCore) -> None:
        places = {str(replica.replica_id): replica.place for replica in spec.replicas}
        places |= {str(peer.gateway_id): peer.place for peer in spec.peers}
        self._views[spec.gateway_id] = _View(spec, policy, core, places, spec.replicas)
        self._checkers[spec.gateway_id] = Checker(core)

    def on_step(self, now_ns: int, gateway_id: GatewayId, event: Event, effects: list[Effect]) -> None:
        self._now_ns = now_ns
        view = self._views[gateway_id]
        if isinstance(event, events.AssignmentApplied):
            view.places |= {str(each.replica_id): each.place for each in event.replicas}
        self._count(view, effects)
        if not self._every_invariant:
            return
        checker = self._checkers[gateway_id]
        held, for_a_cache = checker.held, checker.held_for_a_cache
        for violation in checker.after(event, effects, now_ns):
            raise self._broken(violation.invariant, f"{gateway_id}: {violation.detail}")
        self.counts.held["cache"] += checker.held_for_a_cache - for_a_cache
        self.counts.held["time"] += checker.held - held - (checker.held_for_a_cache - for_a_cache)
        self._take_in(view, event, effects)
        for effect in effects:
            self._follow(view, effect)
        view.held = view.all_held()

    # Answers to clients

    def client_heard(self, request: ClientRequest, now_ns: int) -> None:
        self._now_ns = now_ns
        self._expect(
            "nothing is answered twice",
            request.first_token_ns is None,
            f"{request.request_id} began twice",
        )
        self._expect("nothing is answered after its end", request.ended_ns is None, request.request_id)

    def client_ended(self, request: ClientRequest, outcome: Outcome | None, now_ns: int) -> None:
        self._now_ns = now_ns
        self._expect(
            "every request ends exactly once",
            request.ended_ns is None,
            f"{request.request_id} ended twice",
        )
        is_whole = outcome is not Outcome.COMPLETED or request.first_token_ns is not None
        self._expect("what is completed was answered", is_whole, request.request_id)
        if outcome is Outcome.COMPLETED and request.told.now:
            told = (
                f"{request.request_id} was told {request.told.now} of {request.output_tokens},"
                f" after {request.told.breaks} breaks"
            )
            self._expect(
                "no token is told twice, and none is lost",
                request.told.now == request.output_tokens,
                told,
            )
        if request.is_last_check:
            self._check_answer_after_healing(request, outcome)

    # Periodic checks, and those at the end

    def look_for_idle_engines(
        self, engines: dict[ReplicaId, SimReplica], now_ns: int, dead: Collection[GatewayId] = ()
    ) -> None:
        """Check that no request has waited for long beside an engine that was idle for as long. Gateways that are dead
        are skipped, as no request waits there. Raises Broken."""
        self._now_ns = now_ns
        for gateway_id, view in self._views.items():
            if gateway_id in dead:
                continue
            waiters = [visit for visit in view.visits.values() if self._has_waited(visit, now_ns)]
            if not waiters:
                continue
            idle = {engine.replica_id for engine in self._own_engines(view, engines) if _is_long_idle(engine, now_ns)}
            beside = sum(
                bool(
                    self._open_to(view, visit, idle - view.waited_beside(visit))
                    - visit.failed_at
                    - view.too_short_for(visit)
                )
                for visit in waiters
            )
            self._expect("no request waits beside an idle engine", not beside, f"{view.spec.gateway_id}: {beside} wait")

    def _has_waited(self, visit: _Visit, now_ns: int) -> bool:
        """True for a request that has waited for long and may go to any replica of the region. Failures exclude only
        the targets where they happened."""
        return visit.waits and not visit.follows and now_ns - visit.arrived_ns >= _IDLE_NS

    def _open_to(self, view: _View, visit: _Visit, idle: set[ReplicaId]) -> set[ReplicaId]:
        """Idle replicas at which the request could start. A prefill worker counts only if a decode worker of its pool
        is idle."""
        specs = {spec.replica_id: spec for spec in view.replicas if spec.replica_id in idle}
        free = {spec.pool for spec in specs.values() if spec.role is ReplicaRole.DECODE}
        return {
            replica_id
            for replica_id, spec in specs.items()
            if view.takes_part(spec, visit.connectors) and (spec.role is ReplicaRole.UNIFIED or spec.pool in free)
        }

    def _own_engines(self, view: _View, engines: dict[ReplicaId, SimReplica]) -> Iterable[SimReplica]:
        """Engines open to all requests of this gateway: its own replicas in its home region that do not leave."""
        own = (spec for spec in view.replicas if spec.accepts is None and view.leaving.get(spec.replica_id) is None)
        home = (spec.replica_id for spec in own if spec.place == view.spec.place)
        return (engines[replica_id] for replica_id in home)

    def expect_quiet(
        self, engines: Iterable[SimReplica], open_asks: Iterable[ClientRequest], owned: int, now_ns: int
    ) -> None:
        """Check that nothing is left anywhere, after everything has healed and clients send nothing. Raises Broken."""
        self._now_ns = now_ns
        left = [request.request_id for request in open_asks]
        self._expect("nothing is lost", not left, f"no end for {left[:5]} and {len(left)} in all")
        self._expect("queues drain after healing", owned == 0, f"{owned} requests are still owned")
        for engine in engines:
            self._expect("engines drain", engine.outstanding == 0, f"{engine.replica_id} runs {engine.outstanding}")
            kept = f"{engine.replica_id} keeps {engine.kept} prompts"
            self._expect("what is kept for others is let go", engine.kept == 0, kept)
        for view in self._views.values():
            core = view.core
            self._expect("cores forget", not core.requests, f"{view.spec.gateway_id}: {list(core.requests)[:5]}")
            for state in (*core.replicas, *core.peers):
                self._expect(
                    "counts come back to zero", state.in_flight == 0, f"{view.spec.gateway_id}: {state.target}"
                )
                self._expect(
                    "counts come back to zero", not state.unreflected, f"{view.spec.gateway_id}: {state.target}"
                )
            for state in core.replicas:
                self._expect("counts come back to zero", state.retained == 0, f"{state.target} retains")
            for pool in decode_pools_of(core):
                figures = pool.tier.figures(now_ns)
                counts = figures.pooled, figures.dispatched, figures.running, pool.in_prefill
                self._expect("counts come back to zero", not any(counts), f"{pool.spec.name}: {counts}")

    def _check_answer_after_healing(self, request: ClientRequest, outcome: Outcome | None) -> None:
        self._expect("each request is served after healing", request.gateway_id is not None, "no gateway is up")
        assert request.gateway_id is not None
        view = self._views[request.gateway_id]
        may_enter = names_place(view.rule_of(request.profile.tenant), view.spec.place)
        wanted = Outcome.COMPLETED if may_enter else Outcome.REJECTED_RESIDENCY_INGRESS
        detail = f"{request.request_id} at {request.gateway_id}: {outcome} {request.detail}, not {wanted}"
        is_foreign = not request.profile.connectors and not self._is_whole_at_home(view.spec.place)
        is_well = outcome is wanted or (is_foreign and outcome in _TURNED_AWAY)
        self._expect("each request is served after healing", is_well, detail)

    def _is_whole_at_home(self, place: Place) -> bool:
        """True if a replica at this place runs requests from the prompt to the last token."""
        return any(
            replica.role is ReplicaRole.UNIFIED and replica.place == place
            for view in self._views.values()
            if view.spec.place == place
            for replica in view.spec.replicas
        )

    # Events of a gateway

    def _count(self, view: _View, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, StartLeg):
                self.counts.attempts[effect.target.kind] += 1
                self.counts.resumes += effect.segment > 0 and effect.leg == 1
                place = view.places[effect.target.id]
                self.counts.placements[view.spec.place.region, place.region, effect.decision.reason] += 1
            elif isinstance(effect, RefuseForward):
                self.counts.refusals[effect.reason] += 1

    def _take_in(self, view: _View, event: Event, effects: list[Effect]) -> None:
        match event:
            case events.RequestArrived():
                self._check_arrival(view, event, effects)
                self._visit_begins(view, event.profile, None)
            case events.ForwardArrived() if any(isinstance(effect, AcceptForward) for effect in effects):
                self._check_acceptance(view, event)
                self._forward_begins(view, event)
            case events.ReplicasObserved():
                view.observe(event, self._now_ns)
            case events.ReplicaLeaves():
                view.announce(event)
            case events.PeersObserved():
                for each in event.observations:
                    self._hear(view, each)
            case events.AssignmentApplied():
                view.replicas = event.replicas
                view.leaving = {each.replica_id: view.leaving.get(each.replica_id) for each in event.replicas}
                view.pools = {pool.name: pool for pool in event.pools}
                view.accepts = {str(each.replica_id): each.accepts for each in event.replicas}
                view.away = frozenset(event.away)
            case events.PolicyApplied():
                view.policy = event.policy
            case events.PricesChanged():
                view.learn_prices(event)
            case events.ResponseStored():
                where = view.alive.get((event.request_id, event.attempt, event.leg))
                if where is not None:
                    view.stored[event.key] = where
            case events.DrainRequested() | events.DrainLifted():
                view.drains = isinstance(event, events.DrainRequested)
            case events.LockdownChanged():
                view.is_locked_down = event.active
            case events.FirstToken():
                visit = view.visits.get(event.request_id)
                is_alive = (
                    event.request_id,
                    event.attempt,
                    event.leg,
                ) in view.alive  # late events of ended legs are ignored
                if visit is not None and visit.attempt == event.attempt and not visit.waits and is_alive:
                    visit.first_token = True
            case events.LegEnded():
                self._leg_ended(view, event)
            case _:
                pass

    def _forward_begins(self, view: _View, event: events.ForwardArrived) -> None:
        origin = view.places[event.origin_gateway_id]
        crossed = origin.region != view.spec.place.region
        self._visit_begins(view, event.profile, origin, came_across=crossed)
        visit = view.visits[event.profile.request_id]
        visit.rule = event.stamp.rule
        if (left := resumes_in(event.notes)) is not None:
            visit.resumes_left = left.count

    def _visit_begins(
        self, view: _View, profile: RequestProfile, origin: Place | None, *, came_across: bool = False
    ) -> None:
        view.arrivals += 1
        visit = _Visit(view.arrivals, self._now_ns, profile.tenant, origin, came_across, profile.follows)
        visit.request_id = profile.request_id
        visit.is_rest = profile.appends
        visit.is_ordinary = not (profile.follows or profile.appends)
        visit.is_patient = profile.is_patient
        visit.connectors, visit.service_class = profile.connectors, profile.service_class
        view.visits[profile.request_id] = visit
        waiting = view.waiting.setdefault(visit.queue, {})
        if visit.is_ordinary:
            waiting[profile.request_id] = visit.arrival

    def _hear(self, view: _View, heard: PeerObservation) -> None:
        """Record a peer's heartbeat if it is newer than the last one; a peer that restarted counts from its start."""
        before = view.heard.get(heard.report.gateway_id)
        is_newer = before is None or heard.report.sequence >= before.report.sequence
        if before is None or is_newer or heard.generated_ns > before.generated_ns:
            view.heard[heard.report.gateway_id] = heard
            for key, (peer, sent_ns) in list(view.uncounted.items()):
                if peer == heard.report.gateway_id and sent_ns + heard.rtt_ns // 2 < heard.generated_ns:
                    del view.uncounted[key]
            if heard.report.capacities:
                view.serves[heard.report.gateway_id] = heard.report.capacities

    def _leg_ended(self, view: _View, event: events.LegEnded) -> None:
        key = event.request_id, event.attempt, event.leg
        view.stopped.discard(key)
        view.uncounted.pop(key, None)
        target = view.alive.pop(key, None)
        if target is not None:
            if target.kind is TargetKind.REPLICA:
                view.in_flight[ReplicaId(target.id)] -= 1
            if event.result in (LegResult.FAILED, LegResult.CANCELLED):
                view.failed.add(target)
            self._check_breaker(view, target)
        visit = view.visits.get(event.request_id)
        if visit is not None and not visit.waits and visit.attempt == event.attempt:
            has_read = event.leg in visit.reading and event.result is LegResult.COMPLETED
            if target is not None and event.result is not LegResult.BUSY and not has_read:
                visit.failed_at.add(target.id)
            visit.legs.pop(event.leg, None)
            if has_read and len(visit.reading) == 1 and not visit.legs and not visit.decodes:
                visit.is_pooled = True
            elif not visit.legs:
                self._wait_again(view, visit, event)

    def _wait_again(self, view: _View, visit: _Visit, event: events.LegEnded) -> None:
        """Record that a request whose attempt ended waits again, unless it ends with the same event."""
        visit.waits = True
        visit.arrived_ns = self._now_ns
        visit.is_ordinary &= event.remainder is None
        if event.result is LegResult.REFUSED:
            visit.refusals += 1
            gave_up = visit.refusals >= view.core.config.attempt.refusals_max
            visit.is_ordinary &= not gave_up and event.refusal not in _RESIDENCY_REFUSALS
        elif event.result is not LegResult.BUSY or visit.decodes:
            visit.is_ordinary = False
        if visit.is_ordinary:
            view.waiting.setdefault(visit.queue, {})[event.request_id] = visit.arrival

    # Effects of a gateway

    def _follow(self, view: _View, effect: Effect) -> None:
        if isinstance(effect, StartLeg):
            self._follow_start(view, effect)
        elif isinstance(effect, StopLeg):
            view.stopped.add((effect.request_id, effect.attempt, effect.leg))
        elif isinstance(effect, EndRequest):
            self._follow_end(view, effect)
        elif isinstance(effect, RefuseForward):
            detail = f"{view.spec.gateway_id} refused {effect.request_id}: {effect.reason}"
            self._expect("no honest forward is called dishonest", effect.reason not in _DISHONEST, detail)

    def _follow_end(self, view: _View, end: EndRequest) -> None:
        visit = view.visits.pop(end.request_id, None)
        if visit is None:
            return
        view.waiting.get(visit.queue, {}).pop(end.request_id, None)
        for leg, began_ns in visit.legs.items():
            if end.outcome is Outcome.ABANDONED and began_ns == self._now_ns:
                continue  # an owner that has left ends a leg by itself that it is told to begin at that moment
            key = end.request_id, visit.attempt, leg
            ran = f"while leg {leg} of attempt {visit.attempt} ran"
            detail = f"{end.request_id} ended as {end.outcome} at {view.spec.gateway_id} {ran}"
            self._expect("who ends a request ends its legs", key not in view.alive or key in view.stopped, detail)

    def _follow_start(self, view: _View, leg: StartLeg) -> None:
        visit = view.visits[leg.request_id]
        where = f"{leg.request_id} from {view.spec.gateway_id} to {leg.target}"
        is_further_leg = leg.attempt == visit.attempt
        goes_on = leg.segment > visit.segment
        has_answered = visit.first_token and not is_further_leg and not goes_on
        self._expect("after the first token there is no other attempt", not has_answered, where)
        self._expect("what goes on has begun", goes_on <= visit.first_token, where)
        most = min(all_of(view.core.config).resume.resumes_max, visit.resumes_left)
        self._expect("no answer is resumed more often than allowed", leg.segment <= most, where)
        if (left := resumes_in(leg.notes)) is not None:
            told = leg.segment + left.count
            self._expect("a forward allows no more resumes than are left", told <= most, where)
        if goes_on:
            visit.segment, visit.first_token = leg.segment, False
        if not is_further_leg:
            visit.is_ordinary &= not visit.is_pooled  # computed prompt, no free decode worker: computed again
            self._check_order(view, visit, leg)
            visit.reading.clear()
            visit.read_by, visit.is_pooled, visit.decodes = None, False, False
        self._check_part(view, visit, leg, where)
        is_there = not visit.follows or view.stored.get(visit.follows) == leg.target
        self._expect("what goes on from a stored response goes where that is", is_there, where)
        if visit.origin is None and not is_further_leg:  # an attempt ends under the policy that it began under
            visit.rule = view.rule_of(visit.tenant)
            self._stamped.setdefault(leg.request_id, set()).add(visit.rule)
        allowed = names_place(visit.rule, view.places[leg.target.id])
        taken = view.takes_from(leg.target.id, visit.origin)
        self._expect("a replica takes only what its home accepts", taken, where)
        self._expect("nothing leaves the regions its policy allows", allowed, where)
        visit.waits = False
        visit.attempt = leg.attempt
        visit.legs[leg.leg] = self._now_ns
        view.alive[leg.request_id, leg.attempt, leg.leg] = leg.target
        view.waiting[visit.queue].pop(leg.request_id, None)
        if leg.target.kind is TargetKind.REPLICA:
            self._check_push(view, leg, where)
        else:
            self._check_forward(view, visit, leg, where)

    def _check_part(self, view: _View, visit: _Visit, leg: StartLeg, where: str) -> None:
        """Check that each replica runs its own role, and that a decode worker fetches from a prefill worker of its own
        pool."""
        spec = view.spec_of(leg.target)
        role = ReplicaRole.UNIFIED if spec is None else spec.role
        self._expect("a replica runs the part that is its own", _PARTS[leg.role] is role, f"{where} as {leg.role}")
        if leg.role is LegRole.PREFILL:
            visit.reading.add(leg.leg)
            visit.read_by = leg.target
        if leg.role is not LegRole.DECODE or spec is None:
            return
        pool = view.pools[spec.pool]
        assert pool.connector is not None
        read_by = None if visit.read_by is None else view.spec_of(visit.read_by)
        is_own = read_by is not None and read_by.pool == spec.pool and leg.prefill == visit.read_by
        self._expect("an answer is written where its prompt was read for", is_own, where)
        is_in_turn = visit.is_pooled or not pool.connector.is_sequential
        self._expect("nothing is fetched before it was read", is_in_turn, where)
        decode = decode_of(pool)
        beyond = decode.in_flight_margin if decode.sends_at_once or not pool.connector.is_sequential else 0
        has_slot = view.in_flight[spec.replica_id] < pool.decode_batch_max + beyond
        self._expect("no decode worker has more than its batch", has_slot, where)
        named, tier = written_decode(pool).policy, decode_pools_of(view.core).get(spec.pool)
        is_named = named is None or (
            tier is not None and tier.config.policy is named and type(tier.tier.policy) is _DECODE_POLICIES[named]
        )
        self._expect("a pool is decoded by the policy that it names", is_named, where)
        visit.is_pooled, visit.decodes = False, True

    def _check_order(self, view: _View, visit: _Visit, leg: StartLeg) -> None:
        """Check first come, first served among requests of one line that may go to the same targets. Only requests
        that were held for one replica when the event came, or are by its end, and those that leave room, may be
        overtaken."""
        if not visit.is_ordinary:
            return
        waiting = view.alike(visit.queue, leg.request_id)
        earlier = [request_id for request_id, arrival in waiting.items() if arrival < visit.arrival]
        starter = view.core.requests.get(leg.request_id)
        queue_of = view.core.waiting.order.queue_of
        own = None if starter is None else queue_of(starter)
        alike = {
            each: found
            for each in earlier
            if (found := view.core.requests.get(each)) is None
            or starter is None
            or (
                found.profile.identity == starter.profile.identity
                and (own is None or (queue := queue_of(found)) is None or queue is own)
            )
        }
        where = f"at {view.spec.gateway_id}"
        if view.core.placer.takes_full_replicas:
            blocked = [
                each
                for each, found in alike.items()
                if found is not None and each not in view.held and not _may_be_passed(found)
            ]
            is_last = self._is_full(view, leg)  # no request is held for a full target
            detail = f"{leg.request_id} went past {blocked[:3]} {where}"
            self._expect("only who is held is overtaken", is_last or not blocked, detail)
        else:
            numbers = [waiting[each] for each in alike]
            detail = f"{leg.request_id} is number {visit.arrival} {where}, numbers {numbers[:3]} wait"
            self._expect("who came first is served first", not numbers, detail)

    def _is_full(self, view: _View, leg: StartLeg) -> bool:
        """True if this leg fills its target: a replica in its ramp, or a prefill worker whose pool has no room for
        more."""
        replica = view.core.replicas.get(ReplicaId(leg.target.id)) if leg.target.kind is TargetKind.REPLICA else None
        if replica is not None and replica.standing is Standing.RAMP:
            return True
        spec = view.spec_of(leg.target) if leg.role is LegRole.PREFILL else None
        pool = None if spec is None else decode_pools_of(view.core).get(spec.pool)
        return pool is not None and not pool.tier.has_room(pool.in_prefill)

    def _check_push(self, view: _View, leg: StartLeg, where: str) -> None:
        replica_id = ReplicaId(leg.target.id)
        view.in_flight[replica_id] += 1
        probe = view.probes.get(replica_id)
        pushing = view.core.config.pushing
        self._expect("nothing is sent to a replica that leaves", view.leaving.get(replica_id) is None, where)
        self._expect("only healthy replicas are used", probe is not None and probe.healthy, where)
        assert probe is not None
        age_ns = self._now_ns - probe.sampled_ns
        self._expect("only fresh probes count", age_ns <= view.core.config.observation.replica_stale_ns, where)
        if view.core.placer.takes_full_replicas or leg.role is LegRole.DECODE:
            return
        if pushing.mode is PushingMode.PENDING:
            self._expect("nothing is pushed to a replica with pending requests", probe.waiting == 0, where)
        elif pushing.mode is PushingMode.OUTSTANDING:
            within = view.in_flight[replica_id] <= pushing.outstanding_max
            self._expect("no replica has more outstanding than it may", within, where)

    def _check_forward(self, view: _View, visit: _Visit, leg: StartLeg, where: str) -> None:
        assert leg.hops is not None
        config = view.core.config
        heard = view.heard.get(GatewayId(leg.target.id))
        self._expect("only peers that were heard are used", heard is not None, where)
        assert heard is not None
        crosses = heard.report.place.region != view.spec.place.region
        self._expect("a cross-region hop is final", not visit.came_across and leg.hops.cross_region <= 1, where)
        self._expect("one hop inside a region", crosses or visit.origin is None, where)
        self._expect("a closed policy forwards nothing", not view.policy.closed_reason, where)
        self._expect("in lockdown nothing is forwarded", not view.is_locked_down, where)
        is_on = config.placement.overflow is OverflowMode.ON or not crosses
        self._expect("nothing is forwarded against the configuration", is_on, where)
        stale_ns = max(3 * config.observation.keep_alive_ns, 2 * heard.rtt_p99_ns)
        self._expect("only fresh heartbeats count", self._now_ns - heard.generated_ns <= stale_ns, where)
        self._expect("only accepting peers are used", heard.report.accepting, where)
        is_rest = visit.is_rest or leg.segment > 0  # new requests that wait there are behind it
        queue = _queue_of(heard.report, is_pooled=leg.decision.pool is not None)
        if is_rest:
            queue = sum(each.appending for each in heard.report.queues)
        view.uncounted[leg.request_id, leg.attempt, leg.leg] = (heard.report.gateway_id, self._now_ns)
        if config.placement.peer_availability is PeerAvailability.FREE_REPLICA:
            is_short = bool(visit.follows) or queue <= config.placement.peer_queue_length_max
            self._expect("no peer with a long queue is used", is_short, where)
        else:
            forwards = sum(peer == heard.report.gateway_id for peer, _ in view.uncounted.values())
            ahead = _AHEAD if view.core.placer.takes_full_replicas else 1
            room = _room_of(heard, config.observation.publish_interval_ns, ahead)
            has_room = bool(visit.follows) or queue + forwards <= room
            self._expect("no peer is sent more than it has room for", has_room, where)

    def _check_arrival(self, view: _View, event: events.RequestArrived, effects: list[Effect]) -> None:
        """Check an arrival's outcome. A request that is refused ends with the event of its arrival."""
        request_id = event.profile.request_id
        ends = [each.outcome for each in effects if isinstance(each, EndRequest) and each.request_id == request_id]
        is_over = bool(ends)
        where = f"{request_id} at {view.spec.gateway_id}"
        self._expect("who goes out of service takes nothing new", is_over or not view.drains, where)
        if Outcome.REJECTED_RESIDENCY_PROCESSING in ends:
            self._expect(
                "no request is refused that a target may serve", not self._may_serve(view, event.profile), where
            )
            is_away = event.profile.model in view.away
            self._expect("no request is refused by policy whose replicas may come home", not is_away, where)
        elif Outcome.REJECTED_TOO_LONG in ends:
            self._expect(
                "no request that fits is refused as too long", not self._fits_somewhere(view, event.profile), where
            )
        elif Outcome.REJECTED_UNSUPPORTED in ends:
            serves = self._may_serve(view, event.profile, heard=True)
            self._expect("no request is refused that a target may serve", not serves, where)
        elif not is_over and not event.profile.follows and not view.is_locked_down:
            may_come = event.profile.model in view.away or self._may_serve(view, event.profile, knows_all=False)
            self._expect("no request waits that no target may serve", may_come, where)

    def _may_serve(self, view: _View, profile: RequestProfile, *, heard: bool = False, knows_all: bool = True) -> bool:
        """True if a target could serve the request, were all of them up and free. `heard`: peers count only if they
        reported it. `knows_all`: peers without replicas never count; else they do until they were heard, since the
        gateway cannot know."""
        rule, home = view.rule_of(profile.tenant), view.spec.place
        for spec in view.replicas:
            takes_it = view.takes_from(spec.replica_id, None)
            takes_part = view.takes_part(spec, profile.connectors)
            if profile.model in spec.models and names_place(rule, spec.place) and takes_it and takes_part:
                return True
        if view.policy.closed_reason:
            return False
        overflows = view.core.config.placement.overflow_of(profile.model) is OverflowMode.ON
        for peer in view.spec.peers:
            is_within_reach = peer.place.region == home.region or overflows
            known = view.serves.get(peer.gateway_id)
            other = self._views.get(peer.gateway_id)
            has_some = other is None or not knows_all or bool(other.spec.replicas)
            is_told = heard or peer.gateway_id in view.heard  # a peer that has reported is known by its reports alone
            serves = (known is None and has_some and not is_told) or any(
                each.model == profile.model
                and names_place(rule, each.place)
                and (each.connector is None or each.connector in profile.connectors)
                for each in known or ()
            )
            if is_within_reach and names_place(rule, peer.place) and serves:
                return True
        return False

    def _fits_somewhere(self, view: _View, profile: RequestProfile) -> bool:
        """True if the request, by its real length, fits the longest context here that it may use, as the core knows it:
        the configured one, or a shorter one that the engine reported. The prompt's last, partial token is not
        counted."""
        rule, replicas = view.rule_of(profile.tenant), view.core.replicas
        told = [
            replicas.context_of(state)
            for state in replicas
            if names_place(rule, state.spec.place) and view.takes_from(state.spec.replica_id, None)
        ]
        tokens = profile.prompt_bytes // TOKEN_BYTES + (profile.output_tokens_max or 0)
        return tokens < max(told, default=0)

    def _check_acceptance(self, view: _View, event: events.ForwardArrived) -> None:
        origin, here = view.places[event.origin_gateway_id], view.spec.place
        where = f"{event.profile.request_id} of {origin.region} at {here.region}"
        self._expect("a closed policy accepts nothing", not view.policy.closed_reason, where)
        self._expect("in lockdown nothing is accepted", not view.is_locked_down, where)
        self._expect("who goes out of service takes nothing new", not view.drains, where)
        accepted = origin == here or names_place(view.policy.accept, origin)
        self._expect("only accepted origins come in", accepted, where)
        stamped = self._stamped.get(event.profile.request_id, ())
        may_be_here = event.stamp.rule in stamped and names_place(event.stamp.rule, here)
        self._expect("nothing leaves the regions its policy allows", may_be_here, where)

    def _check_breaker(self, view: _View, target: Target) -> None:
        targets = view.core.replicas if target.kind is TargetKind.REPLICA else view.core.peers
        state = targets.get(target.id)
        if state is not None and target not in view.failed:
            is_closed = state.breaker.state is BreakerState.CLOSED
            self._expect("only failures are held against a target", is_closed, str(target))

    def _expect(self, what: str, holds: bool, detail: str) -> None:
        if not holds:
            raise self._broken(what, detail)

    def _broken(self, what: str, detail: str) -> Broken:
        return Broken(self._now_ns, what, detail)


def _queue_of(report: LoadReport, *, is_pooled: bool) -> int:
    """Fewest requests that a forward would find ahead of it at the peer."""
    by_pool = {each.pool: each.length for each in report.queues if each.pool is not None}
    if is_pooled and by_pool:
        return min(by_pool.get(each.pool, 0) for each in report.capacities)
    return sum(each.length for each in report.queues if each.pool is None)


def _room_of(heard: PeerObservation, interval_ns: int, ahead: int) -> float:
    """Maximum number of requests for a peer: its room, with what yields there, plus `ahead` times the requests that
    leave while its heartbeat and a forward travel."""
    capacities = heard.report.capacities
    leaving = sum((heard.rtt_ns + interval_ns) / each.release_ns for each in capacities if each.release_ns)
    return sum(max(0, each.room + each.yielding) for each in capacities) + ahead * leaving


def _is_long_idle(engine: SimReplica, now_ns: int) -> bool:
    return engine.is_up and engine.outstanding == 0 and now_ns - engine.changed_ns >= _IDLE_NS


def _may_be_passed(request: RequestState) -> bool:
    """True for a request that is held, leaves room for others, or is started by the same event."""
    return request.held is not None or request.leaves_room or request.phase is not Phase.WAITING
