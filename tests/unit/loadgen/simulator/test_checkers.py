"""The oracle itself: it lets an honest story pass, and stops at the first breach."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from gateway.core.events import ConfigApplied, Event
from gateway.core.features.disaggregated.config import DecodeConfig, DecodePolicyName
from gateway.core.gateway_core import GatewayCore
from gateway.core.invariants import Checker
from gateway.core.kernel.config import PlacementPolicy
from gateway.core.kernel.effects import AcceptForward, Effect, EndRequest, RefuseForward, StartLeg
from gateway.core.kernel.events import (
    AssignmentApplied,
    FirstToken,
    LegEnded,
    PolicyApplied,
    ReplicasObserved,
    RequestAbandoned,
    RequestArrived,
)
from gateway.core.kernel.requests import Hold, RequestState
from gateway.core.kernel.residency import TenantPolicy
from gateway.core.vocabulary import (
    Connector,
    GatewayId,
    LegResult,
    LegRole,
    ModelName,
    Outcome,
    PeerSpec,
    PlaceRule,
    PoolKind,
    PoolName,
    PoolSpec,
    RefusalReason,
    ReplicaId,
    ReplicaObservation,
    ReplicaRole,
    RequestId,
    replica_target,
)
from gateway.features.sections import PoolSections
from loadgen.simulator.agenda import Agenda
from loadgen.simulator.chaos import chaos_scenario
from loadgen.simulator.checkers import Broken, InvariantWatch
from loadgen.simulator.client_requests import ClientRequest
from loadgen.simulator.observers import GatewaySpec
from loadgen.simulator.prompts import empty_prompt
from loadgen.simulator.world import World
from tests.support.core import EU, LAYERED, SECOND, TENANT, US, policy, profile, replica_spec, rule, under
from tests.support.orders import forward_from_eu, leg_order

GATEWAY = GatewayId("gw-us")


class _Blind(Checker):
    """Checker that finds nothing, so that only the oracle can catch a breach."""

    def after(self, event: Event, effects: list[Effect], now_ns: int) -> list[object]:  # type: ignore[override]
        return []


class Witness:
    """Oracle fed by hand with events of one gateway in the US, which has a replica there and one in the EU, and a peer
    in the EU.
    """

    def __init__(
        self, process: object = None, accept: object = None, placement: PlacementPolicy = PlacementPolicy.COST
    ) -> None:
        self.watch = InvariantWatch(every_invariant=True)
        tenants = {TENANT: TenantPolicy(rule(US))} if process == "home" else {}
        own = policy(US, tenants=tenants, accept=rule(US) if accept == "nobody" else rule(US, EU))
        spec = GatewaySpec(
            GATEWAY,
            US,
            (replica_spec("r-us"), replica_spec("r-eu", EU)),
            (PeerSpec(GatewayId("gw-eu"), EU),),
            own,
            under(placement),
        )
        core = GatewayCore(GATEWAY, US, seed=1)
        core.handle(ConfigApplied(under(placement)), 0)
        self.core = core
        self.watch.on_start(spec, own, core)
        self.watch._checkers[GATEWAY] = _Blind(core)
        self.now_ns = SECOND
        self.probe()

    def tell(self, event: Event, *effects: Effect) -> None:
        self.watch.on_step(self.now_ns, GATEWAY, event, list(effects))

    def probe(self, *, waiting: int = 0, healthy: bool = True) -> None:
        seen = [ReplicaObservation(ReplicaId(name), self.now_ns, healthy, 0, waiting) for name in ("r-us", "r-eu")]
        self.tell(ReplicasObserved(tuple(seen)))

    def arrive(self, name: str, *effects: Effect) -> None:
        self.tell(RequestArrived(profile(name), 100 * SECOND), *effects)

    def forward(self, name: str, *effects: Effect, stamped: PlaceRule | None = None) -> None:
        """Forward with this stamp, which counts as its origin's unless one was recorded before."""
        event = forward_from_eu(profile(name), 100 * SECOND, origin="gw-eu", may_run=stamped)
        self.watch._stamped.setdefault(RequestId(name), {event.stamp.rule})
        self.tell(event, *effects)

    def end(self, name: str, *effects: Effect, result: LegResult = LegResult.FAILED) -> None:
        self.tell(LegEnded(RequestId(name), 1, 1, result), *effects)


def start(name: str, *, at: str = "r-us", attempt: int = 1) -> StartLeg:
    return leg_order(name, 1, replica_target(ReplicaId(at)), attempt, deadline_ns=100 * SECOND)


def finish(name: str, outcome: Outcome = Outcome.COMPLETED) -> EndRequest:
    return EndRequest(RequestId(name), outcome, "", 1)


def test_an_honest_story_passes() -> None:
    told = Witness()
    told.arrive("a", start("a"))
    told.tell(FirstToken(RequestId("a"), 1, 1))
    told.end("a", finish("a"), result=LegResult.COMPLETED)
    told.forward("b", AcceptForward(RequestId("b")))


def test_an_owner_that_leaves_as_a_leg_begins_ends_it_by_itself() -> None:
    told = Witness()
    told.arrive("a", start("a"))
    told.tell(RequestAbandoned(RequestId("a")), finish("a", Outcome.ABANDONED))


def test_a_forward_keeps_its_stamp_whatever_its_origin_does_since() -> None:
    told = Witness()
    told.forward("a", AcceptForward(RequestId("a")), start("a"))
    told.watch._stamped[RequestId("a")].add(rule(EU))
    told.end("a", start("a", at="r-eu", attempt=2))


def stamped_by_nobody(told: Witness) -> None:
    told.watch._stamped[RequestId("a")] = {rule(US)}
    told.forward("a", AcceptForward(RequestId("a")))


def beyond_its_stamp(told: Witness) -> None:
    told.forward("a", AcceptForward(RequestId("a")), start("a", at="r-eu"), stamped=rule(US))


def second_attempt_after_a_token(told: Witness) -> None:
    told.arrive("a", start("a"))
    told.tell(FirstToken(RequestId("a"), 1, 1))
    told.end("a", start("a", attempt=2))


def out_of_turn(told: Witness) -> None:
    told.arrive("a")
    told.arrive("b", start("b"))


def waits(told: Witness) -> RequestState:
    """Request that waits in the queue of a core that has no probe of its replica."""
    told.core.handle(PolicyApplied(policy(US)), told.now_ns)
    told.core.handle(AssignmentApplied(1, (replica_spec("r-us"),), ()), told.now_ns)
    told.core.handle(RequestArrived(profile("a"), 100 * SECOND), told.now_ns)
    told.arrive("a")
    return told.core.requests[RequestId("a")]


def past_one_that_is_not_held(told: Witness) -> None:
    waits(told)
    told.arrive("b", start("b"))


def test_whoever_is_held_may_be_overtaken() -> None:
    told = Witness()
    waits(told).held = Hold(0, 1_000, b"")
    told.arrive("b", start("b"))


def abroad(told: Witness) -> None:
    told.arrive("a", start("a", at="r-eu"))


def pushed_to_pending(told: Witness) -> None:
    told.probe(waiting=1)
    told.arrive("a", start("a"))


def pushed_to_the_sick(told: Witness) -> None:
    told.probe(healthy=False)
    told.arrive("a", start("a"))


def pushed_on_old_news(told: Witness) -> None:
    told.now_ns += 60 * SECOND
    told.arrive("a", start("a"))


def accepted_from_a_stranger(told: Witness) -> None:
    told.forward("a", AcceptForward(RequestId("a")))


def refused_as_dishonest(told: Witness) -> None:
    told.forward("a", RefuseForward(RequestId("a"), RefusalReason.HOP_LIMIT, ""))


def ended_while_it_ran(told: Witness) -> None:
    told.arrive("a", start("a"))
    told.end("other", finish("a"))


def left_while_it_ran(told: Witness) -> None:
    told.arrive("a", start("a"))
    told.now_ns += 1
    told.tell(RequestAbandoned(RequestId("a")), finish("a", Outcome.ABANDONED))


def waits_for_nobody(told: Witness) -> None:
    told.tell(RequestArrived(profile("a", model=ModelName("rare")), 100 * SECOND))


def refused_beside_a_replica(told: Witness) -> None:
    told.arrive("a", finish("a", Outcome.REJECTED_RESIDENCY_PROCESSING))


def refused_while_its_replicas_are_away(told: Witness) -> None:
    rare = ModelName("rare")
    told.tell(AssignmentApplied(2, (), (), away=(rare,)))
    ends = finish("a", Outcome.REJECTED_RESIDENCY_PROCESSING)
    told.tell(RequestArrived(profile("a", model=rare), 100 * SECOND), ends)


def adopted(told: Witness) -> None:
    """Let the gateway adopt a replica whose home accepts only requests that arrive there."""
    closed = replace(replica_spec("r-us"), accepts=rule(EU))
    told.tell(AssignmentApplied(2, (closed, replica_spec("r-eu", EU)), (PeerSpec(GatewayId("gw-eu"), EU),)))


def pushed_to_where_its_home_does_not_accept_it(told: Witness) -> None:
    adopted(told)
    told.forward("a", AcceptForward(RequestId("a")), start("a"))
    told.arrive("b", start("b"))


def waits_for_what_its_home_does_not_accept(told: Witness) -> None:
    adopted(told)
    told.arrive("a")


POOL = PoolSpec(PoolName("pd"), PoolKind.DISAGGREGATED, Connector.NIXL, decode_batch_max=1)


def disaggregated(told: Witness, pool: PoolSpec = POOL, taken: PoolSpec | None = None) -> None:
    """Give the gateway a pool of one prefill worker and two decode workers, with a batch of one, and a unified
    engine. `taken`: pool that its core serves by, if any.
    """
    workers = [
        replace(replica_spec(name), pool=POOL.name, role=role)
        for name, role in (("p", ReplicaRole.PREFILL), ("d0", ReplicaRole.DECODE), ("d1", ReplicaRole.DECODE))
    ]
    peers = (PeerSpec(GatewayId("gw-eu"), EU),)
    assigned = AssignmentApplied(2, (replica_spec("r-us"), *workers), peers, pools=(pool,))
    told.tell(assigned)
    if taken is not None:
        told.core.handle(replace(assigned, pools=(taken,)), told.now_ns)
    seen = [ReplicaObservation(ReplicaId(name), told.now_ns, True) for name in ("r-us", "p", "d0", "d1")]
    told.tell(ReplicasObserved(tuple(seen)))


def part(name: str, role: LegRole, at: str, *, leg: int = 1, read_by: str = "p") -> StartLeg:
    prefill = replica_target(ReplicaId(read_by)) if role is LegRole.DECODE else None
    order = replace(start(name, at=at), leg=leg, role=role, connector=Connector.NIXL)
    return replace(order, prefill=prefill)


def read(told: Witness, name: str, *effects: Effect) -> None:
    """Let the request's prefill complete."""
    told.arrive(name, part(name, LegRole.PREFILL, "p"))
    told.end(name, *effects, result=LegResult.COMPLETED)


def test_an_honest_hand_off_passes_and_one_that_came_to_nothing_is_read_again() -> None:
    told = Witness()
    disaggregated(told)
    read(told, "a", part("a", LegRole.DECODE, "d0", leg=2))
    told.tell(LegEnded(RequestId("a"), 1, 2, LegResult.COMPLETED), finish("a"))
    read(told, "b")
    told.arrive("c", replace(part("b", LegRole.PREFILL, "p"), attempt=2))


def decoding_by(policy: DecodePolicyName) -> PoolSpec:
    return replace(POOL, features=PoolSections(decode=DecodeConfig(policy=policy)).texts())


@pytest.mark.parametrize("name", DecodePolicyName)
def test_a_pool_is_decoded_by_the_policy_that_it_names_and_by_no_other(name: DecodePolicyName) -> None:
    for other in DecodePolicyName:
        told = Witness()
        disaggregated(told, decoding_by(name), decoding_by(other))
        with nullcontext() if other is name else pytest.raises(Broken, match="by the policy that it names"):
            read(told, "a", part("a", LegRole.DECODE, "d0", leg=2))


def ordinary_at_a_decode_worker(told: Witness) -> None:
    disaggregated(told)
    told.arrive("a", start("a", at="d0"))


def ordinary_at_a_prefill_worker(told: Witness) -> None:
    disaggregated(told)
    told.arrive("a", start("a", at="p"))


def answered_where_others_read(told: Witness) -> None:
    disaggregated(told)
    read(told, "a", part("a", LegRole.DECODE, "p", leg=2))


def answered_before_it_was_read(told: Witness) -> None:
    disaggregated(told)
    told.arrive("a", part("a", LegRole.PREFILL, "p"), part("a", LegRole.DECODE, "d0", leg=2))


def answered_from_another_prompt(told: Witness) -> None:
    disaggregated(told)
    read(told, "a", part("a", LegRole.DECODE, "d0", leg=2, read_by="r-us"))


def more_than_a_batch(told: Witness) -> None:
    disaggregated(told)
    for name in "ab":
        read(told, name, part(name, LegRole.DECODE, "d0", leg=2))


@pytest.mark.parametrize(
    ("story", "told", "what"),
    [
        (ordinary_at_a_decode_worker, Witness(), "a replica runs the part that is its own"),
        (ordinary_at_a_prefill_worker, Witness(), "a replica runs the part that is its own"),
        (answered_where_others_read, Witness(), "a replica runs the part that is its own"),
        (answered_before_it_was_read, Witness(), "nothing is fetched before it was read"),
        (answered_from_another_prompt, Witness(), "an answer is written where its prompt was read for"),
        (more_than_a_batch, Witness(), "no decode worker has more than its batch"),
        (second_attempt_after_a_token, Witness(), "after the first token there is no other attempt"),
        (out_of_turn, Witness(placement=LAYERED), "who came first is served first"),
        (past_one_that_is_not_held, Witness(), "only who is held is overtaken"),
        (abroad, Witness(process="home"), "nothing leaves the regions its policy allows"),
        (stamped_by_nobody, Witness(), "nothing leaves the regions its policy allows"),
        (beyond_its_stamp, Witness(), "nothing leaves the regions its policy allows"),
        (pushed_to_pending, Witness(placement=LAYERED), "nothing is pushed to a replica with pending requests"),
        (pushed_to_the_sick, Witness(), "only healthy replicas are used"),
        (pushed_on_old_news, Witness(), "only fresh probes count"),
        (accepted_from_a_stranger, Witness(accept="nobody"), "only accepted origins come in"),
        (refused_as_dishonest, Witness(), "no honest forward is called dishonest"),
        (ended_while_it_ran, Witness(), "who ends a request ends its legs"),
        (left_while_it_ran, Witness(), "who ends a request ends its legs"),
        (waits_for_nobody, Witness(process="home"), "no request waits that no target may serve"),
        (refused_beside_a_replica, Witness(), "no request is refused that a target may serve"),
        (
            refused_while_its_replicas_are_away,
            Witness(process="home"),
            "no request is refused by policy whose replicas may come home",
        ),
        (pushed_to_where_its_home_does_not_accept_it, Witness(), "a replica takes only what its home accepts"),
        (waits_for_what_its_home_does_not_accept, Witness(process="home"), "no request waits that no target may serve"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_what_does_not_hold_is_named(story: Callable[[Witness], None], told: Witness, what: str) -> None:
    with pytest.raises(Broken) as caught:
        story(told)
    assert caught.value.what == what


@dataclass
class IdleEngine:
    """Engine that has been idle since the world began."""

    replica_id: ReplicaId
    is_up: bool = True
    outstanding: int = 0
    changed_ns: int = 0


@pytest.mark.parametrize(("failed_at", "may_wait"), [("r-us", True), ("r-eu", False)])
def test_a_failure_excuses_no_wait_but_beside_the_engine_where_it_was(failed_at: str, may_wait: bool) -> None:
    told = Witness()
    told.arrive("a", start("a", at=failed_at))
    told.end("a")
    engines = {ReplicaId("r-us"): IdleEngine(ReplicaId("r-us"))}
    with nullcontext() if may_wait else pytest.raises(Broken, match="no request waits beside an idle engine"):
        told.watch.look_for_idle_engines(engines, told.now_ns + 10 * SECOND)  # type: ignore[arg-type]


def test_with_a_gateway_that_is_dead_nobody_waits() -> None:
    told = Witness()
    told.arrive("a", start("a", at="r-eu"))
    told.end("a")
    engines = {ReplicaId("r-us"): IdleEngine(ReplicaId("r-us"))}
    told.watch.look_for_idle_engines(engines, told.now_ns + 10 * SECOND, [GATEWAY])  # type: ignore[arg-type]


def ask() -> ClientRequest:
    nothing = empty_prompt("llama", "default", 64)
    return ClientRequest(profile("a"), 0, nothing, 1, US.region, GATEWAY, 0, 0)


def test_clients_are_answered_once() -> None:
    watch = InvariantWatch(every_invariant=False)
    watch.client_heard(ask(), 5)
    with pytest.raises(Broken, match="nothing is answered twice"):
        watch.client_heard(dataclasses.replace(ask(), first_token_ns=4), 5)
    with pytest.raises(Broken, match="every request ends exactly once"):
        watch.client_ended(dataclasses.replace(ask(), ended_ns=4), None, 5)
    with pytest.raises(Broken, match="what is completed was answered"):
        watch.client_ended(ask(), Outcome.COMPLETED, 5)


def test_an_engine_that_never_answers_is_noticed_at_the_end() -> None:
    """The engines of this world have a clock that stands still: requests stay open, and the check at the end finds
    them.
    """
    scenario = chaos_scenario(2)
    world = World(scenario, scenario.runs[0], every_invariant=True)
    for engine in world._engines.values():
        engine._agenda = Agenda()
    world.play()
    with pytest.raises(Broken):
        world.check_the_end()
