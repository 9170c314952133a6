"""Admission of clients' requests and of forwards."""

from __future__ import annotations

from typing import Any, Final

import pytest
from msgspec.structs import replace

from gateway.core.config import CoreConfig
from gateway.core.features.lockdown.events import LockdownChanged
from gateway.core.kernel.config import PlacementConfig, PlacementPolicy, QueueConfig
from gateway.core.kernel.effects import EndRequest, PublishLoad, RefuseForward, StartLeg
from gateway.core.kernel.events import (
    AssignmentApplied,
    DrainRequested,
    ForwardArrived,
    PolicyApplied,
    RequestArrived,
    ResponseStored,
    TargetLost,
)
from gateway.core.kernel.residency import TenantPolicy
from gateway.core.vocabulary import (
    Category,
    Connector,
    Hints,
    Hops,
    ModelName,
    Place,
    PlaceRule,
    RefusalReason,
    ReplicaSpec,
    RequestId,
    RequestProfile,
    ServiceClass,
    Standing,
    TenantName,
    peer_target,
)
from tests.support.core import (
    AP,
    BOTH,
    EU,
    MODEL,
    MS,
    SECOND,
    TENANT,
    US,
    Desk,
    desk,
    ended,
    forward,
    occupy,
    of_kind,
    peer_spec,
    policy,
    profile,
    replica_spec,
    rule,
    started,
)

EU_PEER = peer_spec("gw-eu", EU)
under_both = pytest.mark.parametrize("placement", BOTH)


def refusal(one: Desk, event: ForwardArrived) -> RefusalReason | None:
    return next((each.reason for each in one.tell(event) if isinstance(each, RefuseForward)), None)


class TestClients:
    @under_both
    def test_a_full_queue_refuses_with_a_reason(self, placement: PlacementPolicy) -> None:
        one = desk(config=CoreConfig(queue=QueueConfig(length_max=1)), placement=placement)
        occupy(one)
        one.ask("waits")
        assert ended(one.ask("too-many")) == [("too-many", "rejected_queue_full")]

    @under_both
    def test_a_full_queue_lets_through_who_need_not_wait(self, placement: PlacementPolicy) -> None:
        other = replica_spec("other", models=["mistral"])  # type: ignore[list-item]
        one = desk(
            replicas=[replica_spec("r0"), other],
            config=CoreConfig(queue=QueueConfig(length_max=1)),
            placement=placement,
        )
        occupy(one, "r0")
        one.ask("waits")
        assert started(one.ask("elsewhere", model="mistral")) == ["other"]

    def test_an_unknown_model_is_refused(self) -> None:
        assert ended(desk().ask("q", model="nope")) == [("q", "rejected_unknown_model")]

    def test_a_tenant_that_may_not_enter_is_refused(self) -> None:
        away = {TenantName("eu-only"): TenantPolicy(rule(EU))}
        one = desk(own_policy=policy(US, tenants=away))
        assert ended(one.ask("q", tenant="eu-only")) == [("q", "rejected_residency_ingress")]

    def test_a_region_that_the_key_leaves_out_refuses_it(self) -> None:
        narrowed = replace(profile("q"), process=PlaceRule(jurisdictions=frozenset({EU.jurisdiction})))
        assert ended(desk().tell(RequestArrived(narrowed, SECOND))) == [("q", "rejected_residency_ingress")]

    def test_what_follows_nothing_that_is_known_is_refused(self) -> None:
        asked = replace(profile("q"), follows="key")
        assert ended(desk().tell(RequestArrived(asked, SECOND))) == [("q", "rejected_unknown_response")]

    def test_equal_requests_share_a_class_and_a_hop_or_a_lockdown_makes_another(self) -> None:
        one = desk()
        admission, asked = one.core.admission, profile("q")
        own = admission.class_of(asked, admission.rule_of(asked), Hops())
        assert admission.class_of(profile("other"), admission.rule_of(asked), Hops()) is own
        assert (own.may_stay_in_region, own.may_cross_regions) == (True, True)
        forwarded = admission.class_of(asked, admission.rule_of(asked), Hops(1, 0))
        assert (forwarded.may_stay_in_region, forwarded.may_cross_regions) == (False, True)
        one.tell(LockdownChanged(active=True))
        locked = admission.class_of(asked, admission.rule_of(asked), Hops())
        assert (locked.may_stay_in_region, locked.may_cross_regions) == (False, False)

    def test_what_was_judged_before_holds_until_the_rules_change(self) -> None:
        one = desk(peers=[EU_PEER])
        admission, asked = one.core.admission, profile("q")
        before = admission.admittance_of(asked, None)
        assert admission.admittance_of(profile("other"), None) is before
        assert before.ingress.allowed
        assert before.request_class.may_cross_regions
        away = {TENANT: TenantPolicy(rule(EU))}
        one.tell(PolicyApplied(policy(US, tenants=away)))
        assert not one.core.may_enter(TENANT, None)
        assert not admission.admittance_of(asked, None).ingress.allowed
        assert ended(one.ask("q")) == [("q", "rejected_residency_ingress")]
        one.tell(PolicyApplied(policy(US)))
        assert one.core.may_enter(TENANT, None)
        assert admission.admittance_of(asked, None).request_class.may_cross_regions
        one.tell(LockdownChanged(active=True))
        assert not admission.admittance_of(asked, None).request_class.may_cross_regions
        one.tell(LockdownChanged(active=False))
        assert admission.admittance_of(asked, None).request_class.origin is None
        adopted = replace(replica_spec("adopted", place=EU), accepts=rule(US))
        one.tell(AssignmentApplied(9, (replica_spec("r0"), adopted), (EU_PEER,)))
        assert admission.admittance_of(asked, None).request_class.origin == US

    def test_kinds_of_requests_are_judged_apart(self) -> None:
        one = desk()
        admission, asked = one.core.admission, profile("q")
        kinds = [
            asked,
            replace(asked, model=ModelName("other")),
            replace(asked, tenant=TenantName("other")),
            replace(asked, process=rule(US)),
            replace(asked, appends=True),
            replace(asked, service_class=ServiceClass.BATCH),
            replace(asked, connectors=frozenset()),
        ]
        classes = [admission.admittance_of(each, None).request_class for each in kinds]
        told = [(each.model, each.rule, each.appends, each.service_class, each.connectors) for each in classes]
        assert len(set(told)) == len(kinds) - 1, "a tenant without a rule of its own is of the same class"

    def test_judgements_are_bounded(self) -> None:
        one = desk()
        for number in range(3_000):
            one.core.admission.admittance_of(profile("q", tenant=TenantName(f"t{number}")), None)
        assert len(one.core.admission._admittances) <= 1024
        assert len(one.core.admission._ingress) <= 1024

    @under_both
    def test_one_tenant_cannot_fill_the_queue(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=1, config=CoreConfig(queue=QueueConfig(tenant_length_max=2)), placement=placement)
        occupy(one)
        for i in range(2):
            one.ask(f"greedy{i}", tenant="greedy")
        assert ended(one.ask("greedy2", tenant="greedy")) == [("greedy2", "rejected_tenant_limit")]
        assert ended(one.ask("modest", tenant="modest")) == []


def rest_of(event: ForwardArrived) -> ForwardArrived:
    return replace(event, profile=replace(event.profile, appends=True))


class TestForwards:
    @pytest.mark.parametrize(
        ("event", "reason"),
        [
            (forward("q", origin="gw-stranger"), RefusalReason.RESIDENCY_NOT_ACCEPTED),
            (forward("q", origin_place=AP), RefusalReason.RESIDENCY_STAMP),
            (forward("q", allowed=rule(EU)), RefusalReason.RESIDENCY_STAMP),
            (forward("q", hops=Hops(0, 2)), RefusalReason.HOP_LIMIT),
            (forward("q", hops=Hops(0, 0)), RefusalReason.HOP_LIMIT),
            (forward("q", deadline_ns=0), RefusalReason.DEADLINE),
        ],
    )
    def test_what_may_not_come_in_is_refused_with_its_reason(
        self, event: ForwardArrived, reason: RefusalReason
    ) -> None:
        assert refusal(desk(peers=[EU_PEER]), event) is reason

    def test_a_policy_that_does_not_accept_the_origin_refuses(self) -> None:
        one = desk(peers=[EU_PEER], own_policy=policy(US, accept=rule(AP)))
        assert refusal(one, forward("q")) is RefusalReason.RESIDENCY_NOT_ACCEPTED

    def test_an_adopted_replica_in_a_forbidden_place_is_not_used(self) -> None:
        one = desk(replicas=[replica_spec("adopted", AP)], peers=[EU_PEER])
        assert refusal(one, forward("q", allowed=rule(EU, US))) is RefusalReason.UNKNOWN_MODEL

    @under_both
    def test_a_queue_longer_than_tau_refuses_as_busy(self, placement: PlacementPolicy) -> None:
        one = desk(
            replicas=1,
            peers=[EU_PEER],
            config=CoreConfig(placement=PlacementConfig(peer_queue_length_max=1)),
            placement=placement,
        )
        occupy(one)
        one.ask("own")
        assert refusal(one, forward("q")) is RefusalReason.BUSY

    def test_before_an_answer_that_has_begun_only_those_count_that_have(self) -> None:
        one = desk(replicas=1, peers=[EU_PEER], config=CoreConfig(placement=PlacementConfig(peer_queue_length_max=1)))
        occupy(one)
        for number in range(3):
            one.ask(f"own{number}")
        assert refusal(one, rest_of(forward("first"))) is None
        assert refusal(one, rest_of(forward("second"))) is RefusalReason.BUSY

    def test_more_forwards_than_slots_come_free_meanwhile_are_refused_at_once(self) -> None:
        """A request leaves one of two slots every 50 ms, so two leave in the 100 ms until the origin hears of it. The
        rule lets four times as many wait here; twice that, and one more, are accepted."""
        one = desk(replicas=[replace(replica_spec("r0"), slots=2)], peers=[EU_PEER])
        one.hear("gw-eu", EU, rtt_ms=0)
        one.ask("own")
        one.wait(100 * MS)
        one.finish("own")
        one.probe("r0")
        taken = [refusal(one, forward(f"f{number}")) is None for number in range(30)]
        assert taken == [number < 2 + 2 * 4 * 2 + 1 for number in range(30)]
        assert refusal(one, forward("late")) is RefusalReason.BUSY

    def test_a_forwarded_duplicate_is_refused(self) -> None:
        one = desk(peers=[EU_PEER])
        one.tell(forward("q"))
        assert refusal(one, forward("q")) is RefusalReason.DUPLICATE

    def test_what_follows_nothing_that_is_known_here_is_refused(self) -> None:
        event = forward("q")
        asked = replace(event, profile=replace(event.profile, follows="key"))
        assert refusal(desk(peers=[EU_PEER]), asked) is RefusalReason.UNKNOWN_RESPONSE


def adopted(accepts: PlaceRule, name: str = "adopted", place: Place = US) -> ReplicaSpec:
    return replace(replica_spec(name, place), accepts=accepts)


class TestAdoptedReplicas:
    """An adopted replica takes only requests that arrived in a place its home accepts, whatever the own policy says."""

    def test_what_its_home_does_not_accept_is_refused_at_once_by_the_name_of_the_place(self) -> None:
        one = desk(replicas=[adopted(rule(EU))])
        told = one.ask("q")
        assert ended(told) == [("q", "rejected_residency_processing")]
        (end,) = of_kind(EndRequest, told)
        assert end.detail == (
            "`llama` is served only where it may not be processed: "
            "us-east-1 (what was adopted from there takes nothing that arrived in us-east-1)"
        )
        assert one.core.models_for(TENANT, None) == []

    def test_what_its_home_accepts_is_served(self) -> None:
        one = desk(replicas=[adopted(rule(US))])
        assert started(one.ask("q")) == ["adopted"]
        assert one.core.models_for(TENANT, None) == [MODEL]

    def test_with_the_policy_of_its_home_unknown_it_takes_nothing(self) -> None:
        assert ended(desk(replicas=[adopted(PlaceRule())]).ask("q")) == [("q", "rejected_residency_processing")]
        assert (
            refusal(desk(replicas=[adopted(PlaceRule())], peers=[EU_PEER]), forward("f"))
            is RefusalReason.RESIDENCY_NOT_ACCEPTED
        )

    def test_a_forward_is_held_against_where_it_arrived_first_and_not_where_we_are(self) -> None:
        one = desk(replicas=[adopted(rule(EU))], peers=[EU_PEER, peer_spec("gw-ap", AP)])
        assert started(one.tell(forward("taken"))) == ["adopted"]
        assert refusal(one, forward("q", origin="gw-ap", origin_place=AP)) is RefusalReason.RESIDENCY_NOT_ACCEPTED
        assert refusal(desk(replicas=[adopted(rule(US))], peers=[EU_PEER]), forward("q")) is (
            RefusalReason.RESIDENCY_NOT_ACCEPTED
        )

    def test_our_own_replicas_take_what_it_does_not_and_the_decision_names_it(self) -> None:
        one = desk(replicas=[adopted(rule(EU)), replica_spec("own")])
        (leg,) = of_kind(StartLeg, one.ask("q"))
        assert leg.target.id == "own"
        standings = {each.target.id: each.standing for each in leg.decision.considered}
        assert standings == {"own": Standing.AVAILABLE, "adopted": Standing.NOT_ALLOWED}

    @under_both
    def test_nobody_waits_for_it_when_our_own_is_busy_and_whoever_may_go_there_is_not_held_up(
        self, placement: PlacementPolicy
    ) -> None:
        one = desk(replicas=[adopted(rule(EU)), replica_spec("own")], peers=[EU_PEER], placement=placement)
        occupy(one, "own")
        assert started(one.ask("waits")) == []
        busy = {PlacementPolicy.COST: "unhealthy", PlacementPolicy.PREFIX: "pending"}[placement]
        assert one.core.why_it_waits(RequestId("waits")) == f"replica:own ({busy}), peer:gw-eu (lost: not heard yet)"
        assert started(one.tell(forward("may"))) == ["adopted"]

    @under_both
    def test_what_waits_is_judged_again_when_something_is_adopted_or_its_home_changes_its_mind(
        self, placement: PlacementPolicy
    ) -> None:
        one = desk(replicas=1, placement=placement)
        occupy(one, "r0")
        one.ask("q")
        one.tell(AssignmentApplied(2, (replica_spec("r0"), adopted(rule(EU))), ()))
        assert started(one.probe("adopted")) == []
        assert started(one.tell(AssignmentApplied(3, (replica_spec("r0"), adopted(rule(US))), ()))) == ["adopted"]

    @under_both
    def test_what_waits_for_it_alone_is_told_when_its_home_shuts_it_out(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=[adopted(rule(US))], placement=placement)
        occupy(one)
        one.ask("q")
        told = one.tell(AssignmentApplied(2, (adopted(PlaceRule()),), ()))
        assert ended(told) == [("q", "rejected_residency_processing")]

    @pytest.mark.parametrize("is_control", [False, True])
    def test_a_stored_response_there_is_out_of_reach_as_well(self, is_control: bool) -> None:
        one = desk(replicas=[adopted(rule(US))])
        one.ask("first")
        one.tell(ResponseStored(RequestId("first"), 1, 1, "key"))
        one.finish("first")
        asked = replace(profile("next"), follows="key", is_control=is_control)
        assert started(one.tell(RequestArrived(asked, SECOND))) == ["adopted"]
        one.finish("next")
        one.tell(AssignmentApplied(2, (adopted(rule(EU)),), ()))
        again = replace(asked, request_id=RequestId("again"))
        assert ended(one.tell(RequestArrived(again, SECOND))) == [("again", "rejected_unknown_response")]

    def test_a_change_of_what_it_takes_leaves_it_what_it_is(self) -> None:
        one = desk(replicas=[adopted(rule(US))])
        one.ask("q")
        state = next(iter(one.core.replicas))
        one.tell(AssignmentApplied(2, (adopted(rule(EU)),), ()))
        assert next(iter(one.core.replicas)) is state
        assert state.in_flight == 1

    def test_where_nothing_was_adopted_it_makes_no_class_of_its_own_where_a_request_arrived(self) -> None:
        one = desk(peers=[EU_PEER])
        admission, asked = one.core.admission, profile("q")
        assert admission.class_of(asked, rule(US), Hops(0, 1), EU) is admission.class_of(
            asked, rule(US), Hops(0, 1), AP
        )
        one.tell(AssignmentApplied(2, (adopted(rule(EU)),), (EU_PEER,)))
        assert admission.class_of(asked, rule(US), Hops(0, 1), EU) != admission.class_of(
            asked, rule(US), Hops(0, 1), AP
        )

    def test_a_peer_is_promised_only_what_would_take_its_requests(self) -> None:
        one = desk(replicas=[adopted(rule(EU)), replica_spec("own")])
        (publish,) = of_kind(PublishLoad, one.wait(SECOND))[-1:]
        assert {(each.replicas, each.accepts) for each in publish.report.capacities} == {(1, rule(EU)), (1, None)}
        promised = {
            place: sum(each.replicas for each in publish.report.told_to(place).capacities) for place in (EU, AP)
        }
        assert promised == {EU: 2, AP: 1}
        assert sum(each.replicas for each in publish.report.told_to(None).capacities) == 1
        assert all(each.accepts is None for each in publish.report.told_to(EU).capacities)


OTHER = ModelName("other")


class TestFallbacks:
    """Choice among several models: each is judged where it is served, and a busy model still counts as served."""

    def first(self, one: Desk, *names: ModelName, follows: str = "") -> ModelName | None:
        return one.core.first_served(names or (MODEL, OTHER), TENANT, None, follows)

    def two(self, place: Place = US, **options: Any) -> Desk:
        """The first model is served in that place, the second here."""
        specs = (replica_spec("r1", place), replica_spec("r2", models=(OTHER,)))
        return desk(replicas=specs, **options)

    def test_the_first_that_is_served_is(self) -> None:
        one = self.two()
        assert self.first(one) == MODEL
        assert self.first(one, ModelName("nowhere"), OTHER) == OTHER
        assert self.first(one, ModelName("nowhere")) is None

    def test_residency_is_judged_for_each(self) -> None:
        one = self.two(EU, own_policy=policy(US, process=rule(US)))
        assert self.first(one) == OTHER
        assert self.first(one, MODEL) == MODEL  # refused later, which tells the reason

    def test_who_is_busy_is_waited_for_and_who_is_down_is_not(self) -> None:
        one = self.two()
        one.probe("r1", waiting=10, running=100)
        assert self.first(one) == MODEL
        one.probe("r1", healthy=False)
        assert self.first(one) == OTHER
        one.probe("r2", healthy=False)
        assert self.first(one) == MODEL

    def test_a_peer_serves_while_it_is_heard(self) -> None:
        one = self.two(EU, peers=(EU_PEER,))
        one.probe("r1", healthy=False)
        assert self.first(one) == OTHER
        one.hear("gw-eu", EU)
        assert self.first(one) == MODEL
        one.tell(TargetLost(peer_target(EU_PEER.gateway_id), "gone"))
        assert self.first(one) == OTHER

    def test_what_follows_a_response_goes_by_what_its_place_serves(self) -> None:
        one = self.two()
        one.ask("a", model=OTHER)
        one.tell(ResponseStored(RequestId("a"), 1, 1, "key"))
        assert self.first(one, follows="key") == OTHER


def test_batch_rooms_are_those_that_a_clients_request_may_run_in() -> None:
    replicas = [replica_spec("r0"), replica_spec("r1", models=[OTHER]), adopted(rule(EU))]
    one = desk(replicas=replicas, peers=[EU_PEER, peer_spec("us-2", US)])
    assert one.core.batch_rooms(MODEL, TENANT, None) == {US.region: 7}
    one.hear("gw-eu", EU, room=20)
    assert one.core.batch_rooms(MODEL, TENANT, None) == {US.region: 7, EU.region: 18}
    assert one.core.batch_rooms(MODEL, TENANT, rule(US, AP)) == {US.region: 7}
    one.hear("us-2", US, room=10)
    assert one.core.batch_rooms(MODEL, TENANT, rule(US)) == {US.region: 16}
    one.tell(LockdownChanged(active=True))
    assert one.core.batch_rooms(MODEL, TENANT, None) == {US.region: 7}, "nothing is forwarded"
    one.tell(DrainRequested())
    assert one.core.batch_rooms(MODEL, TENANT, None) == {}


def test_who_may_not_enter_has_no_batch_room() -> None:
    one = desk(own_policy=policy(US, tenants={TENANT: TenantPolicy(rule(EU))}), peers=[EU_PEER])
    one.hear("gw-eu", EU)
    assert one.core.batch_rooms(MODEL, TENANT, None) == {}
    one.tell(PolicyApplied(policy(US)))
    assert one.core.batch_rooms(MODEL, TENANT, None) == {US.region: 14, EU.region: 1}


CHANGED: Final[dict[str, Any]] = {
    "request_id": RequestId("b"),
    "model": ModelName("mistral"),
    "tenant": TenantName("acme"),
    "prompt_bytes": 9,
    "prefix": bytes(8),
    "prefix_block_bytes": 32,
    "session_key": "other",
    "stream": False,
    "output_tokens_max": 5,
    "follows": "response",
    "is_control": True,
    "process": PlaceRule(regions=frozenset({US.region})),
    "connectors": frozenset[Connector](),
    "prompt_key": b"key",
    "category": Category.CODE,
    "text_bytes": 3,
    "extra_prompt_tokens": 7,
    "budget_tokens": 9,
    "appends": True,
    "service_class": ServiceClass.BATCH,
    "sent_bytes": 11,
    "hints": Hints(priority=1),
    "keeps_yielding": True,
    "is_patient": True,
}
"""Another value of each property of a profile that a client's request may have when it arrives."""


def test_no_property_is_forgotten() -> None:
    assert {*RequestProfile.__struct_fields__} - CHANGED.keys() == {"identity"}, "an attempt that failed sets it"


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("service_class", [ServiceClass.INTERACTIVE, ServiceClass.BATCH])
def test_a_verdict_that_is_remembered_is_that_on_the_request_itself(name: str, service_class: ServiceClass) -> None:
    admission, known = desk().core.admission, replace(profile("a"), service_class=service_class)
    admission.admittance_of(known, None)
    changed = replace(known, **{name: CHANGED[name]})
    remembered, judged = admission.admittance_of(changed, None), admission._judge(changed, None)
    assert (remembered.request_class, remembered.rule) == (judged.request_class, judged.rule)
