"""Placement of requests that yield: they go where room is left over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.core.config import CoreConfig
from gateway.core.features.classes.config import BatchConfig, ClassesConfig
from gateway.core.features.sharing.config import SharingConfig
from gateway.core.kernel import events
from gateway.core.kernel.config import OverflowMode, PlacementConfig, PlacementPolicy, QueueConfig
from gateway.core.kernel.description import sharing_of
from gateway.core.kernel.effects import Effect, PublishLoad, RefuseForward, StartLeg
from gateway.core.vocabulary import LegResult, PeerSpec, RequestId, ServiceClass, TenantName
from tests.support.core import (
    EU,
    EU_PEER,
    MODEL,
    SECOND,
    TENANT,
    US,
    Desk,
    desk,
    ended,
    forward,
    of_kind,
    peer_spec,
    profile,
    replica_spec,
    started,
)

BATCH, BEST_EFFORT, INTERACTIVE = ServiceClass.BATCH, ServiceClass.BEST_EFFORT, ServiceClass.INTERACTIVE
POLICIES = [PlacementPolicy.COST, PlacementPolicy.LEAST_LOAD]


def ask(one: Desk, request_id: str, service_class: ServiceClass, tenant: str = "acme") -> list[Effect]:
    asked = replace(profile(request_id, tenant=TenantName(tenant)), service_class=service_class)
    return one.tell(events.RequestArrived(asked, one.now_ns + 900 * SECOND))


@pytest.mark.parametrize("placement", POLICIES)
class TestRoom:
    def test_what_is_a_batch_goes_where_a_share_stays_free(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=1, placement=placement)
        one.probe(running=3, kv_usage=0.5)
        assert started(ask(one, "b1", BATCH)) == ["r0"]
        one.first_token("b1")
        one.probe(running=4, kv_usage=0.95)
        assert started(ask(one, "b2", BATCH)) == []
        assert started(ask(one, "i1", INTERACTIVE)) == ["r0"], "who is interactive takes what is left"
        one.first_token("i1")
        assert started(one.probe(running=4, kv_usage=0.6)) == ["r0"], "and then there is room again"

    def test_not_beside_a_prompt_that_is_being_read(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=1, placement=placement)
        ask(one, "i1", INTERACTIVE)
        assert started(ask(one, "b1", BATCH)) == []
        assert started(one.first_token("i1")) == ["r0"]

    def test_beside_an_answer_in_one_piece_once_its_prompt_should_be_read_and_nothing_waits(
        self, placement: PlacementPolicy
    ) -> None:
        """Answers to lines of batches come in one piece, and so tell of no first token."""
        one = desk(replicas=1, placement=placement)
        whole = replace(profile("b1", prompt="x" * 6_000), service_class=BATCH, stream=False)
        one.tell(events.RequestArrived(whole, one.now_ns + 900 * SECOND))
        assert started(ask(one, "b2", BATCH)) == []
        one.now_ns += SECOND // 10
        assert started(one.probe(running=1)) == [], "6,000 bytes take longer"
        one.now_ns += SECOND // 10
        assert started(one.probe(running=0, waiting=1)) == [], "it has not begun"
        assert started(one.probe(running=1)) == ["r0"]
        one.finish("b1")
        assert one.core.replicas.at(0).in_flight == 1

    def test_what_an_engine_runs_at_once_is_learnt_from_when_it_had_some_waiting(
        self, placement: PlacementPolicy
    ) -> None:
        one = desk(replicas=1, placement=placement)
        one.probe(running=10, waiting=3)
        one.probe(running=10, waiting=2)
        one.probe(running=9)
        assert started(ask(one, "b1", BATCH)) == [], "one of ten stays free"
        assert started(one.probe(running=8)) == ["r0"]

    def test_what_is_best_effort_goes_where_nobody_runs(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=2, placement=placement)
        one.probe(running=1)
        assert started(ask(one, "e1", BEST_EFFORT)) == []
        assert started(one.probe("r1", running=0)) == ["r1"]

    def test_who_is_interactive_goes_first_whoever_came_first(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=1, placement=placement)
        one.probe(running=3, healthy=False)
        ask(one, "b1", BATCH)
        ask(one, "i1", INTERACTIVE)
        effects = one.probe(running=0)
        assert [each.request_id for each in of_kind(StartLeg, effects)][:1] == ["i1"]


class TestPatience:
    def test_a_batch_that_has_waited_long_enough_is_served_like_the_others(self) -> None:
        classes = ClassesConfig(batch=BatchConfig(promotion_ns=20 * SECOND, wait_max_ns=40 * SECOND))
        one = desk(replicas=1, config=CoreConfig(classes=classes))
        one.probe(running=5, kv_usage=0.95)
        assert started(ask(one, "b1", BATCH)) == []
        seen: list[str] = []
        for second in range(1, 22):
            seen += [f"{second}:{each}" for each in started(one.wait(SECOND))]
            seen += [f"{second}:{each}" for each in started(one.probe(running=5, kv_usage=0.95))]
        assert seen == ["20:r0"]

    def test_a_line_of_a_batch_is_never_promoted(self) -> None:
        classes = ClassesConfig(batch=BatchConfig(promotion_ns=2 * SECOND, wait_max_ns=40 * SECOND))
        one = desk(replicas=1, config=CoreConfig(classes=classes))
        one.probe(running=5, kv_usage=0.95)
        line = replace(profile("b1"), service_class=BATCH, keeps_yielding=True)
        one.tell(events.RequestArrived(line, one.now_ns + 900 * SECOND))
        for _ in range(10):
            assert not started([*one.wait(SECOND), *one.probe(running=5, kv_usage=0.95)])
        assert started(one.probe(running=4, kv_usage=0.5)) == ["r0"]

    def test_where_nobody_is_promoted_its_patience_ends(self) -> None:
        classes = ClassesConfig(batch=BatchConfig(promotion_ns=None, wait_max_ns=3 * SECOND))
        one = desk(replicas=1, config=CoreConfig(classes=classes))
        one.probe(running=5, kv_usage=0.95)
        ask(one, "b1", BATCH)
        assert ended(one.wait(3 * SECOND)) == [("b1", "expired_in_queue")]

    def test_best_effort_is_turned_away_first_then_batch_then_everybody(self) -> None:
        one = desk(replicas=1, config=CoreConfig(queue=QueueConfig(length_max=4)), placement=PlacementPolicy.LEAST_LOAD)
        one.probe(running=1, waiting=1)
        told: dict[str, list[tuple[str, str]]] = {}
        for number, kind in enumerate([INTERACTIVE] * 2 + [BEST_EFFORT, INTERACTIVE, BATCH, INTERACTIVE, INTERACTIVE]):
            told[f"q{number}"] = ended(ask(one, f"q{number}", kind))
        assert [each for each in told if told[each]] == ["q2", "q4", "q6"]


class TestOtherGateways:
    def test_a_batch_overflows_to_whoever_has_a_share_to_spare(self) -> None:
        one = desk(replicas=1, peers=[peer_spec("eu-1", EU)])
        one.probe(running=5, kv_usage=0.95)
        one.hear("eu-1", EU, queue=2)
        assert started(ask(one, "b1", BATCH)) == [], "somebody waits there"
        assert started(one.hear("eu-1", EU, available=2)) == ["eu-1"]

    def test_each_replica_there_that_would_begin_one_is_sent_one(self) -> None:
        one = desk(replicas=1, peers=[peer_spec("eu-1", EU)])
        one.probe(running=5, kv_usage=0.95)
        for name in ("b1", "b2", "b3"):
            ask(one, name, BATCH)
        assert started(one.hear("eu-1", EU, room=8, spare=0)) == [], "there is room, but none to spare"
        assert started(one.hear("eu-1", EU, room=8, spare=2)) == ["eu-1", "eu-1"]
        assert started(one.hear("eu-1", EU, room=8, spare=3)) == ["eu-1"], "two are on their way"

    def test_peers_are_told_how_many_replicas_would_begin_one(self) -> None:
        specs = [replace(replica_spec(name), slots=10) for name in ("r0", "r1", "r2")]
        one = desk(replicas=specs, peers=[peer_spec("eu-1", EU)])
        for name, running in (("r0", 9), ("r1", 8), ("r2", 0)):
            one.probe(name, running=running)
        one.wait(SECOND)
        (told,) = of_kind(PublishLoad, one.effects)[-1].report.capacities
        assert (told.room, told.spare) == (13, 2), "one of ten slots stays free"

    def test_what_has_waited_long_enough_yields_there_no_more_either(self) -> None:
        classes = ClassesConfig(batch=BatchConfig(promotion_ns=20 * SECOND, wait_max_ns=40 * SECOND))
        one = desk(replicas=1, peers=[peer_spec("eu-1", EU)], config=CoreConfig(classes=classes))
        one.probe(healthy=False)
        assert started(ask(one, "b1", BATCH)) == []
        one.wait(20 * SECOND)
        (order,) = of_kind(StartLeg, one.hear("eu-1", EU))
        assert not order.yields
        one.hear("eu-1", EU, available=2)
        (order,) = of_kind(StartLeg, ask(one, "b2", BATCH))
        assert order.yields

    def test_a_forward_that_yields_is_taken_only_where_it_can_start(self) -> None:
        one = desk(replicas=1, peers=[peer_spec("gw-eu", EU)])
        one.probe(running=5, kv_usage=0.95)
        arrival = forward("f1")
        batch = replace(arrival, profile=replace(arrival.profile, service_class=BATCH))
        (refused,) = one.tell(batch)
        assert (refused.reason, one.core.waiting.lengths()) == ("busy", {})  # type: ignore[union-attr]

    def test_who_yields_does_not_make_this_gateway_look_busy(self) -> None:
        one = desk(replicas=1)
        one.probe(running=5, kv_usage=0.95)
        ask(one, "b1", BATCH)
        assert one.core.waiting.lengths() != {}
        assert one.core.waiting.lengths_told() == {}


class TestRoomsOfBatches:
    """Requests of class `batch` that could run at once, by region."""

    @pytest.mark.parametrize(
        ("slots", "running", "rooms"),
        [(10, 0, 9), (10, 5, 4), (10, 8, 1), (10, 9, 0), (1, 0, 1), (1, 1, 0), (0, 20, 16)],
    )
    def test_a_share_of_each_replica_stays_free(self, slots: int, running: int, rooms: int) -> None:
        one = desk(replicas=[replace(replica_spec("r0"), slots=slots), replace(replica_spec("r1"), slots=1)])
        one.probe("r0", running=running)
        one.probe("r1", running=1)
        assert one.core.batch_rooms(MODEL, TENANT, None) == {US.region: rooms}

    @pytest.mark.parametrize("probe", [{"waiting": 1}, {"running": 1, "kv_usage": 0.95}, {"healthy": False}])
    def test_a_replica_that_would_get_none_has_none(self, probe: dict[str, Any]) -> None:
        one = desk(replicas=1)
        one.probe(**probe)
        assert one.core.batch_rooms(MODEL, TENANT, None) == {US.region: 0}

    def test_a_replica_that_prefills_has_none(self) -> None:
        one = desk(replicas=1)
        ask(one, "i1", INTERACTIVE)
        assert one.core.batch_rooms(MODEL, TENANT, None) == {US.region: 0}

    @pytest.mark.parametrize(
        ("heard", "rooms"),
        [({}, 9), ({"room": 1}, 1), ({"queue": 1}, 0), ({"accepting": False}, 0), ({"room": 0}, 0)],
    )
    def test_a_peer_has_what_it_can_spare(self, heard: dict[str, Any], rooms: int) -> None:
        one = desk(replicas=1, peers=[EU_PEER])
        one.hear("gw-eu", EU, **({"room": 10} | heard))
        assert one.core.batch_rooms(MODEL, TENANT, None) == {US.region: 7, EU.region: rooms}

    @pytest.mark.parametrize("mode", [OverflowMode.OFF, OverflowMode.SHADOW])
    def test_without_overflow_other_regions_have_none(self, mode: OverflowMode) -> None:
        config = CoreConfig(placement=PlacementConfig(overflow=mode))
        one = desk(replicas=1, peers=[EU_PEER, peer_spec("us-2", US)], config=config)
        one.hear("gw-eu", EU, room=10)
        one.hear("us-2", US, room=10)
        assert one.core.batch_rooms(MODEL, TENANT, None) == {US.region: 16}


@pytest.mark.parametrize("placement", POLICIES)
class TestMoreThanItsShare:
    def flooded(self, placement: PlacementPolicy, peers: Sequence[PeerSpec] = ()) -> Desk:
        """Tenant zeta was here a moment ago; all that runs is acme's, whose second prompt is being read."""
        config = CoreConfig(sharing=SharingConfig(yields_above=1.2), queue=QueueConfig(wait_max_ns=300 * SECOND))
        one = desk(replicas=1, placement=placement, config=config, peers=peers)
        assert started(ask(one, "z1", INTERACTIVE, "zeta")) == ["r0"]
        one.first_token("z1")
        one.finish("z1")
        assert started(ask(one, "a1", INTERACTIVE)) == ["r0"]
        one.first_token("a1")
        assert started(ask(one, "a2", INTERACTIVE)) == ["r0"], "one that runs is no flood"
        return one

    def test_it_goes_where_a_share_stays_free_and_others_take_what_is_left(self, placement: PlacementPolicy) -> None:
        one = self.flooded(placement)
        assert started(ask(one, "a3", INTERACTIVE)) == [], "another prompt is being read"
        assert "leaves room for others" in one.core.why_it_waits(RequestId("a3"))
        assert started(one.first_token("a2")) == ["r0"]
        one.first_token("a3")
        one.probe(running=4, kv_usage=0.95)
        assert started(ask(one, "a4", INTERACTIVE)) == []
        assert sharing_of(one.core, one.now_ns).leaving_room == 1
        assert started(ask(one, "z2", INTERACTIVE, "zeta")) == ["r0"]
        one.first_token("z2")
        assert started(one.probe(running=4, kv_usage=0.6)) == ["r0"], "and then there is room again"

    def test_where_others_wait_it_comes_after_them(self, placement: PlacementPolicy) -> None:
        one = self.flooded(placement)
        one.first_token("a2")
        one.probe(healthy=False)
        for request_id, tenant in (("a3", "acme"), ("z2", "zeta")):
            assert started(ask(one, request_id, INTERACTIVE, tenant)) == []
        begun: list[StartLeg] = []
        while not begun:
            begun = of_kind(StartLeg, [*one.wait(SECOND), *one.probe()])
        assert [each.request_id for each in begun] == ["z2"], "it comes after others, whoever came first"

    def test_once_nobody_else_was_here_for_a_minute_it_takes_all(self, placement: PlacementPolicy) -> None:
        one = self.flooded(placement)
        one.first_token("a2")
        one.probe(running=4, kv_usage=0.95)
        assert started(ask(one, "a3", INTERACTIVE)) == []
        begun: list[int] = []
        for second in range(1, 63):
            effects = [*one.wait(SECOND), *one.probe(running=4, kv_usage=0.95)]
            begun += [second] * len(started(effects))
        assert begun == [61]

    def test_it_floods_no_other_gateway_either(self, placement: PlacementPolicy) -> None:
        one = self.flooded(placement, [peer_spec("eu-1", EU)])
        one.hear("eu-1", EU, queue=2)
        assert started(ask(one, "a3", INTERACTIVE)) == [], "somebody waits there"
        assert started(one.hear("eu-1", EU, available=1)) == ["eu-1"]

    def test_what_another_gateway_has_judged_is_not_judged_again(self, placement: PlacementPolicy) -> None:
        one = self.flooded(placement, [peer_spec("gw-eu", EU)])
        arrival = forward("f1")
        effects = one.tell(replace(arrival, profile=replace(arrival.profile, tenant=TenantName("acme"))))
        assert not one.core.requests[RequestId("f1")].leaves_room
        assert of_kind(RefuseForward, effects) == []

    def test_what_comes_back_is_not_kept_waiting_for_it(self, placement: PlacementPolicy) -> None:
        one = self.flooded(placement)
        one.first_token("a2")
        assert started(ask(one, "a3", INTERACTIVE)) == ["r0"]
        assert one.core.requests[RequestId("a3")].leaves_room
        one.finish("a3", LegResult.FAILED)
        assert not one.core.requests[RequestId("a3")].leaves_room
