"""A whole mesh of gateway cores in one thread, with a network that delays, reorders and drops as a test decides.

It relays forwards between cores as the live edges would, and keeps its own naive record of where each request was
allowed to run, so that a wrong decision cannot hide behind the code that made it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from gateway.core import events
from gateway.core.config import CoreConfig
from gateway.core.events import Event
from gateway.core.gateway_core import GatewayCore
from gateway.core.invariants import Checker
from gateway.core.kernel import effects as ordered
from gateway.core.kernel.effects import Effect
from gateway.core.kernel.forwarding import leg_end_of
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import (
    NO_HINTS,
    GatewayId,
    Hints,
    LegResult,
    LoadReport,
    ModelName,
    Outcome,
    PeerObservation,
    PeerSpec,
    Place,
    PlaceRule,
    ReplicaId,
    ReplicaObservation,
    ReplicaSpec,
    RequestId,
    TargetKind,
    TenantName,
    peer_target,
)
from mesh.journal_lines import encode_step
from mesh.steps import Step
from tests.support.core import MODEL, MS, profile

RTT_NS = 80 * MS


@dataclass
class OpenLeg:
    """A leg that runs at a target, until the test (or the other gateway) ends it."""

    gateway: str
    order: ordered.StartLeg
    tokens_seen: bool = False


@dataclass
class Ask:
    """A request as its client knows it."""

    ingress: str
    tenant: TenantName
    follows: str = ""
    model: ModelName = MODEL
    ends: list[Outcome] = field(default_factory=list)
    stamped: PlaceRule | None = None
    """Rule of the ingress policy when the ingress last sent the request to a target."""


class Mesh:
    """Cores, their open legs, and messages under way. The test chooses every step."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now_ns = 0
        self.cores: dict[str, GatewayCore] = {}
        self.checkers: dict[str, Checker] = {}
        self.specs: dict[str, list[ReplicaSpec]] = {}
        self.places: dict[tuple[str, ReplicaId], Place] = {}
        """Place of every replica that was ever a gateway's own: a removed replica may be tried until the gateway is
        told."""
        self.accepts: dict[tuple[str, str], PlaceRule | None] = {}
        """Rule by gateway and replica for the origins that the replica takes requests from, as the gateway was last
        told."""
        self.policies: dict[str, ResidencyPolicy] = {}
        self.legs: dict[tuple[str, RequestId], OpenLeg] = {}
        self.asks: dict[RequestId, Ask] = {}
        self.heartbeats: list[tuple[str, LoadReport, int]] = []
        """Heartbeats under way: (to, report, measured at)."""
        self.forwards_under_way: list[tuple[str, str, ordered.StartLeg]] = []
        """Forwards sent and not yet arrived: (from, to, order)."""
        self.stored: list[tuple[TenantName, str]] = []
        self.made_at: dict[str, tuple[str, str]] = {}
        self.cut: set[tuple[str, str]] = set()
        """One-way partitions: messages from the first to the second are lost."""
        self.story: list[str] = []
        """One short line per event, for a failure's message."""
        self.told: list[bytes] = []
        """Every step as a journal would write it, for digests."""

    # Building

    def add_gateway(
        self, name: str, place: Place, replicas: list[ReplicaSpec], policy: ResidencyPolicy, config: CoreConfig
    ) -> None:
        core = GatewayCore(GatewayId(name), place, seed=self.rng.randrange(2**32))
        self.cores[name] = core
        self.checkers[name] = Checker(core)
        self.specs[name] = replicas
        self.tell(name, events.ConfigApplied(config))
        self.apply_policy(name, policy)

    def connect_all(self) -> None:
        for name in self.cores:
            self.assign(name)

    def assign(self, name: str) -> None:
        """Tell a gateway its current replicas and peers."""
        peers = tuple(PeerSpec(GatewayId(other), peer.place) for other, peer in self.cores.items() if other != name)
        version = self.cores[name].assignment_version + 1
        self.places |= {(name, spec.replica_id): spec.place for spec in self.specs[name]}
        self.accepts |= {(name, spec.replica_id): spec.accepts for spec in self.specs[name]}
        self.tell(name, events.AssignmentApplied(version, tuple(self.specs[name]), peers))

    def apply_policy(self, name: str, policy: ResidencyPolicy) -> None:
        self.policies[name] = policy
        self.tell(name, events.PolicyApplied(policy))

    # Handling one event by one core

    def tell(self, name: str, event: Event) -> list[Effect]:
        effects = self.cores[name].handle(event, self.now_ns)
        self.story.append(f"{self.now_ns / 1e6:.1f}ms {name} {type(event).__name__} -> {len(effects)} effects")
        self.told.append(encode_step(Step(self.now_ns, event, effects)))
        violations = self.checkers[name].after(event, effects, self.now_ns)
        assert not violations, (name, event, violations)
        for effect in effects:
            self._perform(name, effect)
        return effects

    def advance(self, duration_ns: int) -> None:
        """Let time pass for all cores; each core is woken when it asked to be."""
        end_ns = self.now_ns + duration_ns
        while True:
            wakeups = [(core.next_wakeup_ns(), name) for name, core in self.cores.items()]
            due = [(max(at_ns, self.now_ns), name) for at_ns, name in wakeups if at_ns is not None and at_ns <= end_ns]
            if not due:
                break
            self.now_ns, name = min(due)
            self.tell(name, events.TimePassed())
        self.now_ns = end_ns

    # Events from outside

    def ask(
        self,
        name: str,
        request_id: str,
        tenant: TenantName,
        prompt: str,
        patience_ns: int,
        *,
        follows: str = "",
        is_control: bool = False,
        model: ModelName = MODEL,
        hints: Hints = NO_HINTS,
    ) -> None:
        self.asks[RequestId(request_id)] = Ask(name, tenant, follows, model)
        plain = profile(request_id, prompt=prompt, tenant=tenant, model=model)
        asked = replace(plain, follows=follows, is_control=is_control, hints=hints)
        self.tell(name, events.RequestArrived(asked, self.now_ns + patience_ns))

    def abandon(self, request_id: RequestId) -> None:
        """Have the client leave: its owner closes the leg, then reports."""
        name = self.asks[request_id].ingress
        self._close_leg(name, request_id)
        self.tell(name, events.RequestAbandoned(request_id))

    def probe(
        self, name: str, *, waiting: Callable[[ReplicaSpec], int], healthy: Callable[[ReplicaSpec], bool]
    ) -> None:
        self.tell(
            name,
            events.ReplicasObserved(
                tuple(
                    ReplicaObservation(spec.replica_id, self.now_ns, healthy(spec), running=1, waiting=waiting(spec))
                    for spec in self.specs[name]
                )
            ),
        )

    def deliver_heartbeat(self, index: int, *, drop: bool) -> None:
        to, report, measured_ns = self.heartbeats.pop(index)
        if not drop and (report.gateway_id, to) not in self.cut:
            heard = PeerObservation(report, measured_ns, self.now_ns, RTT_NS, 2 * RTT_NS)
            self.tell(to, events.PeersObserved((heard,)))

    def deliver_forward(self, index: int) -> None:
        origin, to, order = self.forwards_under_way.pop(index)
        leg = self.legs.get((origin, order.request_id))
        if leg is None or leg.order is not order:
            return  # the origin has closed it meanwhile
        if (origin, to) in self.cut:
            self.end_leg(origin, order.request_id, LegResult.FAILED)
            return
        assert order.hops is not None
        assert order.stamp is not None
        self._oracle_departure(to, order)
        asked = self.asks[order.request_id]
        plain = profile(order.request_id, prompt="forwarded prompt", tenant=asked.tenant, model=asked.model)
        forwarded = replace(plain, follows=asked.follows)
        self.tell(
            to,
            events.ForwardArrived(forwarded, order.deadline_ns, GatewayId(origin), order.hops, order.stamp),
        )

    def lose_peer(self, name: str, peer: str, *, is_silent: bool) -> None:
        """Have a gateway's connection to a peer break, with the forwards on it, or an alarm there say that the peer is
        silent. Either way the peer goes on, and may be heard at any moment."""
        if not is_silent:
            for (gateway, request_id), leg in list(self.legs.items()):
                if (gateway, leg.order.target.id) == (name, peer):
                    self._close_leg(name, request_id, LegResult.FAILED)
        self.tell(name, events.TargetLost(peer_target(GatewayId(peer)), "it was lost", is_silent))

    # Progress of legs

    def replica_legs(self) -> list[OpenLeg]:
        return [leg for leg in self.legs.values() if leg.order.target.kind is TargetKind.REPLICA]

    def first_token(self, leg: OpenLeg) -> None:
        leg.tokens_seen = True
        request_id = leg.order.request_id
        self.tell(leg.gateway, events.FirstToken(request_id, leg.order.attempt, 1))
        origin = self._origin_of(leg)
        if origin is not None:
            self.first_token(origin)

    def store(self, leg: OpenLeg) -> None:
        """Have the engine store its answer; every gateway on the answer's way learns of it."""
        request_id = leg.order.request_id
        key = f"response-{leg.order.attempt}-of-{request_id}-at-{leg.gateway}"  # each answer is another response
        self.made_at[key] = (leg.gateway, leg.order.target.id)
        self.stored.append((self.asks[request_id].tenant, key))
        self.tell(leg.gateway, events.ResponseStored(request_id, leg.order.attempt, 1, key))
        origin = self._origin_of(leg)
        if origin is not None:
            self.tell(origin.gateway, events.ResponseStored(request_id, origin.order.attempt, 1, key))

    def end_leg(self, name: str, request_id: RequestId, result: LegResult, **more: object) -> None:
        leg = self.legs.pop((name, request_id))
        self.tell(name, events.LegEnded(request_id, leg.order.attempt, 1, result, **more))  # type: ignore[arg-type]

    # Performing effects

    def _perform(self, name: str, effect: Effect) -> None:
        match effect:
            case ordered.StartLeg():
                self._start(name, effect)
            case ordered.StopLeg():
                self._close_leg(name, effect.request_id)
            case ordered.TakeBackLeg():
                if not self.legs[name, effect.request_id].tokens_seen:
                    self._close_leg(name, effect.request_id, LegResult.TAKEN_BACK)
            case ordered.AcceptForward():
                self._oracle_accepted(name, effect.request_id)
                origin = self._leg_towards(name, effect.request_id)
                if origin is not None:
                    self.tell(origin.gateway, events.LegAccepted(effect.request_id, origin.order.attempt, 1))
            case ordered.RefuseForward():
                origin = self._leg_towards(name, effect.request_id)
                if origin is not None:
                    self.end_leg(
                        origin.gateway,
                        effect.request_id,
                        LegResult.REFUSED,
                        refusal=effect.reason,
                        detail=effect.detail,
                    )
            case ordered.EndRequest():
                self._ended(name, effect)
            case ordered.RecordShadow() | ordered.SampleProgress():
                pass
            case ordered.PublishLoad():
                for other in self.cores:
                    if other != name:
                        told = effect.report.told_to(self.cores[other].place)
                        self.heartbeats.append((other, told, self.now_ns))

    def _start(self, name: str, order: ordered.StartLeg) -> None:
        self.legs[name, order.request_id] = OpenLeg(name, order)
        ask = self.asks[order.request_id]
        if ask.ingress == name:
            ask.stamped = self._rule_of(name, ask.tenant)
        if order.target.kind is TargetKind.PEER:
            assert not self.policies[name].closed_reason, "a closed policy forwarded"
            self.forwards_under_way.append((name, order.target.id, order))
        else:
            self._oracle_run(name, order)

    def _close_leg(self, name: str, request_id: RequestId, result: LegResult = LegResult.CANCELLED) -> None:
        """Have the owner close its connection; the gateway at the other end notices."""
        leg = self.legs.get((name, request_id))
        if leg is None:
            return
        target = leg.order.target
        self.end_leg(name, request_id, result)
        if target.kind is TargetKind.PEER and request_id in self.cores[target.id].requests:
            self._close_leg(target.id, request_id)
            self.tell(target.id, events.RequestAbandoned(request_id))

    def _ended(self, name: str, end: ordered.EndRequest) -> None:
        if self.asks[end.request_id].ingress == name:
            self.asks[end.request_id].ends.append(end.outcome)
            return
        origin = self._leg_towards(name, end.request_id)
        if origin is None:
            return
        result, refusal, detail = leg_end_of(end.outcome, end.detail)
        self.end_leg(origin.gateway, end.request_id, result, refusal=refusal, detail=detail)

    def _leg_towards(self, name: str, request_id: RequestId) -> OpenLeg | None:
        """Leg by which another gateway forwarded this request to `name`."""
        for (gateway, leg_request), leg in self.legs.items():
            if leg_request == request_id and gateway != name and leg.order.target.id == name:
                return leg
        return None

    def _origin_of(self, leg: OpenLeg) -> OpenLeg | None:
        return self._leg_towards(leg.gateway, leg.order.request_id)

    # The oracle: written without the residency module, on purpose

    def _rule_of(self, name: str, tenant: TenantName) -> PlaceRule:
        policy = self.policies[name]
        return policy.tenants[tenant].process if tenant in policy.tenants else policy.process

    def _oracle_departure(self, to: str, order: ordered.StartLeg) -> None:
        assert order.hops is not None
        assert order.hops.cross_region <= 1, "forwarded across regions twice"
        assert order.hops.in_region <= 1, "forwarded within a region twice"
        self._oracle_place(order.request_id, self.cores[to].place)

    def _oracle_run(self, name: str, order: ordered.StartLeg) -> None:
        self._oracle_place(order.request_id, self.places[name, ReplicaId(order.target.id)])
        ask = self.asks[order.request_id]
        accepts = self.accepts[name, order.target.id]
        origin = self.cores[ask.ingress].place
        assert accepts is None or _names(accepts, origin), f"{order.target.id} does not take what arrives in {origin}"
        if ask.ingress != name:
            self._oracle_accepted(name, order.request_id)
        if ask.follows:
            assert self.made_at[ask.follows] == (name, order.target.id), "it runs where its response is not"

    def _oracle_accepted(self, name: str, request_id: RequestId) -> None:
        origin = self.cores[self.asks[request_id].ingress].place
        policy = self.policies[name]
        assert not policy.closed_reason, "a closed policy accepted a forward"
        assert self.cores[name].forwarding_stop is None, "a forward was accepted in lockdown"
        assert origin == policy.place or _names(policy.accept, origin), f"{name} does not accept {origin}"

    def _oracle_place(self, request_id: RequestId, place: Place) -> None:
        rule = self.asks[request_id].stamped
        assert rule is not None
        assert _names(rule, place), f"{request_id} may not be processed in {place}"


def _names(rule: PlaceRule, place: Place) -> bool:
    named = place.region in rule.regions or place.jurisdiction in rule.jurisdictions
    for each in rule.regions_within:
        named = named or (place.region in each.regions and place.jurisdiction in each.jurisdictions)
    return named and place.region not in rule.denied_regions
