"""Any topology, any policies, any order of events: no request is lost, ends twice, or leaves its regions."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from gateway.core.config import CoreConfig
from gateway.core.features.lockdown.events import LockdownChanged
from gateway.core.kernel.config import (
    AttemptConfig,
    OverflowMode,
    PeerAvailability,
    PlacementConfig,
    PlacementPolicy,
    PushingConfig,
    PushingMode,
    QueueConfig,
)
from gateway.core.kernel.effects import AcceptForward, StartLeg
from gateway.core.kernel.events import ForwardArrived
from gateway.core.kernel.narrowing import narrowed
from gateway.core.kernel.residency import ResidencyPolicy, TenantPolicy, closed_policy
from gateway.core.vocabulary import (
    GatewayId,
    Hints,
    Hops,
    Jurisdiction,
    LegResult,
    ModelName,
    Place,
    PlaceRule,
    RegionName,
    ReplicaId,
    ReplicaSpec,
    ResidencyStamp,
    TenantName,
)
from tests.support.core import MODEL, MS, SECOND, profile
from tests.support.mesh import Mesh
from tests.support.nightly import examples

PLACES = [
    Place(RegionName("us-east-1"), Jurisdiction("US")),
    Place(RegionName("us-west-2"), Jurisdiction("US")),
    Place(RegionName("eu-west-1"), Jurisdiction("EU")),
    Place(RegionName("ap-south-1"), Jurisdiction("IN")),
]
RARE = ModelName("rare")
TENANTS = [TenantName("default"), TenantName("acme"), TenantName("beta")]

rules = st.builds(
    PlaceRule,
    jurisdictions=st.frozensets(st.sampled_from([place.jurisdiction for place in PLACES])),
    regions=st.frozensets(st.sampled_from([place.region for place in PLACES])),
    denied_regions=st.frozensets(st.sampled_from([place.region for place in PLACES]), max_size=1),
)
all_hints = st.builds(Hints, st.integers(0, 9), st.integers(0, 3), st.booleans(), st.booleans())
configs = st.builds(
    CoreConfig,
    placement=st.builds(
        PlacementConfig,
        policy=st.sampled_from(PlacementPolicy),
        overflow=st.sampled_from([*[OverflowMode.ON] * 3, OverflowMode.OFF, OverflowMode.SHADOW]),
        peer_queue_length_max=st.integers(0, 3),
        prefix_index_bytes_max=st.sampled_from([4096, 2**20]),
        hold_ns=st.sampled_from([0, 50 * MS]),
        hold_size_bytes=st.sampled_from([0, 8192]),
        peer_availability=st.sampled_from(PeerAvailability),
    ),
    pushing=st.builds(
        PushingConfig,
        mode=st.sampled_from(PushingMode),
        in_band_credit=st.sampled_from([None, 0, 2]),
        outstanding_max=st.integers(1, 3),
    ),
    queue=st.builds(QueueConfig, length_max=st.integers(1, 6), wait_max_ns=st.sampled_from([200 * MS, 5 * SECOND])),
    attempt=st.builds(
        AttemptConfig,
        attempts_max=st.integers(1, 3),
        refusals_max=st.integers(1, 3),
        first_token_deadline_ns=st.sampled_from([300 * MS, 5 * SECOND]),
        breaker_failures_in_row=st.integers(1, 3),
    ),
)


EVERYWHERE = PlaceRule(jurisdictions=frozenset(place.jurisdiction for place in PLACES))


@st.composite
def rules_with(draw: st.DrawFn, place: Place) -> PlaceRule:
    """Rule that is often open and sometimes narrow; a narrow one mostly allows the region itself."""
    kind = draw(st.integers(0, 3))
    if kind < 2:
        return EVERYWHERE
    narrow = draw(rules)
    if kind == 2:
        return PlaceRule(narrow.jurisdictions, narrow.regions | {place.region}, narrow.denied_regions - {place.region})
    return narrow


@st.composite
def policies(draw: st.DrawFn, place: Place) -> ResidencyPolicy:
    if draw(st.integers(0, 7)) == 7:
        return closed_policy(place, "unreadable")
    tenants = {tenant: TenantPolicy(draw(rules_with(place))) for tenant in draw(st.sets(st.sampled_from(TENANTS[1:])))}
    digest = draw(st.text("abcdef", min_size=4, max_size=4))
    policy = ResidencyPolicy(place, draw(rules_with(place)), draw(rules_with(place)), tenants, digest=digest)
    return narrowed(policy, draw(policies(place))) if draw(st.integers(0, 3)) == 0 else policy


class MeshMachine(RuleBasedStateMachine):
    """Hypothesis picks topology, policies and every step; the mesh checks itself and its oracle after each one."""

    @initialize(data=st.data(), seed=st.integers(0, 2**16))
    def build(self, data: st.DataObject, seed: int) -> None:
        self.mesh = Mesh(random.Random(seed))
        self.asked = 0
        self.lies = 0
        self.fresh = 0
        self.dead: dict[str, list[ReplicaSpec]] = {}
        """Replicas that left each gateway."""
        self.homes: dict[ReplicaId, str] = {}
        """Home gateways of the replicas that were ever adopted."""
        places = data.draw(st.lists(st.sampled_from(PLACES), min_size=2, max_size=4))
        for number, place in enumerate(places):
            models = (MODEL, RARE) if number == 0 else (MODEL,)
            adopted = data.draw(st.sampled_from([place, place, *PLACES]))
            replicas = [
                ReplicaSpec(
                    ReplicaId(f"r{number}-{i}"),
                    adopted if i == 1 else place,
                    models,
                    slots=data.draw(st.sampled_from([0, 1, 4])),
                )
                for i in range(data.draw(st.integers(1, 3)))
            ]
            self.mesh.add_gateway(f"gw{number}", place, replicas, data.draw(policies(place)), data.draw(configs))
        self.mesh.connect_all()
        for name in self.mesh.cores:
            self._probe(name, 0, healthy=True)
        self.all_heartbeats_arrive()

    def _probe(self, name: str, waiting: int, *, healthy: bool) -> None:
        self.mesh.probe(name, waiting=lambda _: waiting, healthy=lambda _: healthy)

    @rule(data=st.data(), tenant=st.sampled_from(TENANTS), prompt=st.text("ab", min_size=1, max_size=80))
    def a_request_arrives(self, data: st.DataObject, tenant: TenantName, prompt: str) -> None:
        self.asked += 1
        name = data.draw(st.sampled_from(list(self.mesh.cores)))
        patience_ns = data.draw(st.sampled_from([100 * MS, 10 * SECOND]))
        self.mesh.ask(name, f"q{self.asked}", tenant, prompt, patience_ns, hints=data.draw(all_hints))

    @rule(data=st.data(), tenant=st.sampled_from(TENANTS))
    def a_model_of_one_gateway_alone_is_asked_for(self, data: st.DataObject, tenant: TenantName) -> None:
        """Request for a model that one gateway has, arriving anywhere: often no rule allows it there."""
        self.asked += 1
        name = data.draw(st.sampled_from(list(self.mesh.cores)))
        self.mesh.ask(name, f"q{self.asked}", tenant, "ab", 10 * SECOND, model=RARE)

    @rule(data=st.data(), burst=st.integers(1, 4))
    def one_gateway_is_busy_and_everybody_knows(self, data: st.DataObject, burst: int) -> None:
        """Requests at a busy gateway while others are idle: the case for overflow."""
        busy = data.draw(st.sampled_from(list(self.mesh.cores)))
        self.mesh.advance(100 * MS)
        for name in self.mesh.cores:
            self._probe(name, int(name == busy), healthy=True)
        self.all_heartbeats_arrive()
        for _ in range(burst):
            self.asked += 1
            tenant = data.draw(st.sampled_from(TENANTS))
            self.mesh.ask(busy, f"q{self.asked}", tenant, "a" * data.draw(st.integers(1, 80)), 10 * SECOND)

    @rule(data=st.data(), waiting=st.integers(0, 1), healthy=st.sampled_from([True, True, True, False]))
    def replicas_are_probed(self, data: st.DataObject, waiting: int, healthy: bool) -> None:
        self._probe(data.draw(st.sampled_from(list(self.mesh.cores))), waiting, healthy=healthy)

    @rule(data=st.data(), returns=st.booleans(), is_first_to_fail=st.booleans())
    def a_replica_dies_and_another_takes_its_place(
        self, data: st.DataObject, returns: bool, is_first_to_fail: bool
    ) -> None:
        """Replace a replica by a fresh one, or by one that died before; for a moment the new one alone is idle.

        The dead replica's legs fail before or after the gateway learns of its death.
        """
        name = data.draw(st.sampled_from(list(self.mesh.cores)))
        specs, dead = self.mesh.specs[name], self.dead.setdefault(name, [])
        if not specs:
            return
        gone = specs.pop(data.draw(st.integers(0, len(specs) - 1)))
        self._probe(name, 1, healthy=True)
        if is_first_to_fail:
            self._fail_all_at(name, gone.replica_id)
        self.fresh += 1
        new = dead.pop(0) if returns and dead else replace(gone, replica_id=ReplicaId(f"fresh-{self.fresh}"))
        new = replace(new, accepts=gone.accepts)
        specs.append(new)
        dead.append(gone)
        self.mesh.assign(name)
        self._fail_all_at(name, gone.replica_id)
        self.mesh.advance(1 * MS)
        self.mesh.probe(name, waiting=lambda spec: int(spec is not new), healthy=lambda _: True)

    @precondition(lambda self: len(self.mesh.cores) > 1)
    @rule(data=st.data(), is_lost=st.booleans())
    def a_replica_is_adopted(self, data: st.DataObject, is_lost: bool) -> None:
        """Move a replica to another gateway, which knows what its home accepts, or nothing of it; a replica may return
        home.
        """
        names = list(self.mesh.cores)
        at, to = data.draw(st.permutations(names).map(lambda each: each[:2]))
        if not self.mesh.specs[at]:
            return
        spec = self.mesh.specs[at].pop(data.draw(st.integers(0, len(self.mesh.specs[at]) - 1)))
        home = self.homes.setdefault(spec.replica_id, at)
        policy = self.mesh.policies[home]
        known = PlaceRule() if is_lost or policy.closed_reason else policy.accept
        self.mesh.specs[to].append(replace(spec, accepts=None if to == home else known))
        self.mesh.assign(at)
        self.mesh.assign(to)
        self._fail_all_at(at, spec.replica_id)
        self._probe(to, 0, healthy=True)

    @rule(data=st.data())
    def what_a_home_accepts_changes(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.mesh.cores)))
        specs = self.mesh.specs[name]
        specs[:] = [spec if spec.accepts is None else replace(spec, accepts=data.draw(rules)) for spec in specs]
        self.mesh.assign(name)

    def _fail_all_at(self, name: str, replica_id: ReplicaId) -> None:
        for leg in self.mesh.replica_legs():
            if (leg.gateway, leg.order.target.id) == (name, replica_id):
                self.mesh.end_leg(name, leg.order.request_id, LegResult.FAILED)

    @precondition(lambda self: self.mesh.heartbeats)
    @rule(data=st.data(), drop=st.sampled_from([False, False, False, True]))
    def a_heartbeat_arrives_or_is_lost(self, data: st.DataObject, drop: bool) -> None:
        self.mesh.deliver_heartbeat(data.draw(st.integers(0, len(self.mesh.heartbeats) - 1)), drop=drop)

    @rule()
    def all_heartbeats_arrive(self) -> None:
        for _ in range(len(self.mesh.heartbeats)):
            self.mesh.deliver_heartbeat(0, drop=False)

    @precondition(lambda self: self.mesh.forwards_under_way)
    @rule(data=st.data())
    def a_forward_arrives(self, data: st.DataObject) -> None:
        self.mesh.deliver_forward(data.draw(st.integers(0, len(self.mesh.forwards_under_way) - 1)))

    @precondition(lambda self: self.mesh.replica_legs())
    @rule(data=st.data())
    def a_first_token_comes(self, data: st.DataObject) -> None:
        self.mesh.first_token(data.draw(st.sampled_from(self.mesh.replica_legs())))

    @precondition(lambda self: self.mesh.replica_legs())
    @rule(
        data=st.data(),
        result=st.sampled_from(
            [
                LegResult.COMPLETED,
                LegResult.COMPLETED,
                LegResult.FAILED,
                LegResult.BUSY,
                LegResult.CLIENT_ERROR,
                LegResult.INTERNAL,
            ]
        ),
    )
    def an_attempt_ends(self, data: st.DataObject, result: LegResult) -> None:
        leg = data.draw(st.sampled_from(self.mesh.replica_legs()))
        self.mesh.end_leg(leg.gateway, leg.order.request_id, result)

    @precondition(lambda self: any(not ask.ends for ask in self.mesh.asks.values()))
    @rule(data=st.data())
    def a_client_leaves(self, data: st.DataObject) -> None:
        alive = [request_id for request_id, ask in self.mesh.asks.items() if not ask.ends]
        self.mesh.abandon(data.draw(st.sampled_from(alive)))

    @rule(duration_ns=st.sampled_from([1 * MS, 50 * MS, 400 * MS, 6 * SECOND]))
    def time_passes(self, duration_ns: int) -> None:
        self.mesh.advance(duration_ns)

    @rule(data=st.data())
    def a_policy_changes(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.mesh.cores)))
        self.mesh.apply_policy(name, data.draw(policies(self.mesh.cores[name].place)))

    @rule(data=st.data(), active=st.booleans(), cut=st.booleans())
    def an_operator_locks_down_or_releases(self, data: st.DataObject, active: bool, cut: bool) -> None:
        self.mesh.tell(data.draw(st.sampled_from(list(self.mesh.cores))), LockdownChanged(active, cut))

    @precondition(lambda self: self.mesh.replica_legs())
    @rule(data=st.data())
    def a_response_is_stored(self, data: st.DataObject) -> None:
        self.mesh.store(data.draw(st.sampled_from(self.mesh.replica_legs())))

    @precondition(lambda self: self.mesh.stored)
    @rule(data=st.data(), is_control=st.booleans())
    def a_request_follows_a_stored_response(self, data: st.DataObject, is_control: bool) -> None:
        """Request that continues a stored response, at the same gateway or at one that does not know it."""
        self.asked += 1
        tenant, key = data.draw(st.sampled_from(self.mesh.stored))
        name = data.draw(st.sampled_from(list(self.mesh.cores)))
        self.mesh.ask(name, f"q{self.asked}", tenant, "ab", 10 * SECOND, follows=key, is_control=is_control)

    @rule(data=st.data())
    def a_one_way_partition_starts_or_heals(self, data: st.DataObject) -> None:
        names = list(self.mesh.cores)
        pair = (data.draw(st.sampled_from(names)), data.draw(st.sampled_from(names)))
        self.mesh.cut ^= {pair}

    @precondition(lambda self: len(self.mesh.cores) > 1)
    @rule(data=st.data(), is_silent=st.booleans())
    def a_peer_is_lost(self, data: st.DataObject, is_silent: bool) -> None:
        name, peer = data.draw(st.permutations(list(self.mesh.cores)))[:2]
        self.mesh.lose_peer(name, peer, is_silent=is_silent)

    @rule(data=st.data(), hops=st.builds(Hops, st.integers(0, 2), st.integers(0, 2)), origin=st.sampled_from(PLACES))
    def a_gateway_lies(self, data: st.DataObject, hops: Hops, origin: Place) -> None:
        """Forward with a stamp from another place than its sender's, or with impossible hop counts: it must never be
        accepted.
        """
        names = list(self.mesh.cores)
        to, sender = data.draw(st.sampled_from(names)), data.draw(st.sampled_from([*names, "gw-unknown"]))
        known = sender in self.mesh.cores and sender != to
        crosses = known and self.mesh.cores[sender].place.region != self.mesh.cores[to].place.region
        honest = known and origin == self.mesh.cores[sender].place and hops.is_within_limit(crosses_regions=crosses)
        if honest:
            return
        self.lies += 1
        stamp = ResidencyStamp(origin, TENANTS[0], EVERYWHERE, "x")
        deadline_ns = self.mesh.now_ns + 1000 * MS
        lie = ForwardArrived(profile(f"lie{self.lies}"), deadline_ns, GatewayId(sender), hops, stamp)
        effects = self.mesh.tell(to, lie)
        taken = [effect for effect in effects if isinstance(effect, AcceptForward | StartLeg)]
        assert not any(effect.request_id.startswith("lie") for effect in taken)

    @invariant()
    def nothing_ends_twice(self) -> None:
        for request_id, ask in getattr(getattr(self, "mesh", None), "asks", {}).items():
            assert len(ask.ends) <= 1, (request_id, ask.ends)

    def teardown(self) -> None:
        """Heal everything and let every leg finish: every request must have exactly one end."""
        mesh = getattr(self, "mesh", None)
        if mesh is None:
            return
        mesh.cut.clear()
        for _ in range(40):
            for name in mesh.cores:
                self._probe(name, 0, healthy=True)
            while mesh.heartbeats:
                mesh.deliver_heartbeat(0, drop=False)
            while mesh.forwards_under_way:
                mesh.deliver_forward(0)
            for leg in mesh.replica_legs():
                if mesh.legs.get((leg.gateway, leg.order.request_id)) is leg:
                    mesh.end_leg(leg.gateway, leg.order.request_id, LegResult.COMPLETED)
            mesh.advance(300 * MS)
        mesh.advance(20 * SECOND)
        for request_id, ask in mesh.asks.items():
            assert len(ask.ends) == 1, (request_id, ask.ends, mesh.journal_lines[-30:])
        for name, core in mesh.cores.items():
            assert not core.requests, (name, list(core.requests))
            assert all(state.in_flight == 0 for state in [*core.replicas, *core.peers])


TestMesh = MeshMachine.TestCase
TestMesh.settings = settings(
    max_examples=examples(few=20, night=150),
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
