"""Who is let in and who is not; what becomes of those who are is the core's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.config import CoreConfig, PlacementConfig, QueueConfig
from gateway.core.effects import RefuseForward
from gateway.core.events import ForwardArrived, LockdownChanged, RequestArrived
from gateway.core.residency import TenantPolicy
from gateway.core.vocabulary import Hops, PlaceRule, RefusalReason, TenantName
from tests.support.core import (
    AP,
    EU,
    SECOND,
    US,
    Desk,
    desk,
    ended,
    forward,
    peer_spec,
    policy,
    profile,
    replica_spec,
    rule,
    started,
)

EU_PEER = peer_spec("gw-eu", EU)


def refusal(one: Desk, event: ForwardArrived) -> RefusalReason | None:
    return next((each.reason for each in one.tell(event) if isinstance(each, RefuseForward)), None)


class TestClients:
    def test_a_full_queue_refuses_with_a_reason(self) -> None:
        one = desk(config=CoreConfig(queue=QueueConfig(length_max=1)))
        one.probe(waiting=1)
        one.ask("waits")
        assert ended(one.ask("too-many")) == [("too-many", "rejected_queue_full")]

    def test_a_full_queue_lets_through_who_need_not_wait(self) -> None:
        other = replica_spec("other", models=["mistral"])  # type: ignore[list-item]
        one = desk(replicas=[replica_spec("r0"), other], config=CoreConfig(queue=QueueConfig(length_max=1)))
        one.probe("r0", waiting=1)
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
        intake, asked = one.core._intake, profile("q")
        own = intake.class_of(asked, intake.rule_of(asked), Hops())
        assert intake.class_of(profile("other"), intake.rule_of(asked), Hops()) is own
        assert (own.may_stay_in_region, own.may_cross_regions) == (True, True)
        forwarded = intake.class_of(asked, intake.rule_of(asked), Hops(1, 0))
        assert (forwarded.may_stay_in_region, forwarded.may_cross_regions) == (False, True)
        one.tell(LockdownChanged(active=True))
        locked = intake.class_of(asked, intake.rule_of(asked), Hops())
        assert (locked.may_stay_in_region, locked.may_cross_regions) == (False, False)

    def test_one_tenant_cannot_fill_the_queue(self) -> None:
        one = desk(replicas=1, config=CoreConfig(queue=QueueConfig(tenant_length_max=2)))
        one.probe(waiting=1)
        for i in range(2):
            one.ask(f"greedy{i}", tenant="greedy")
        assert ended(one.ask("greedy2", tenant="greedy")) == [("greedy2", "rejected_tenant_limit")]
        assert ended(one.ask("modest", tenant="modest")) == []


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

    def test_a_queue_longer_than_tau_refuses_as_busy(self) -> None:
        one = desk(replicas=1, peers=[EU_PEER], config=CoreConfig(placement=PlacementConfig(peer_queue_length_max=1)))
        one.probe(waiting=1)
        one.ask("own")
        assert refusal(one, forward("q")) is RefusalReason.BUSY

    def test_a_forwarded_duplicate_is_refused(self) -> None:
        one = desk(peers=[EU_PEER])
        one.tell(forward("q"))
        assert refusal(one, forward("q")) is RefusalReason.DUPLICATE

    def test_what_follows_nothing_that_is_known_here_is_refused(self) -> None:
        event = forward("q")
        asked = replace(event, profile=replace(event.profile, follows="key"))
        assert refusal(desk(peers=[EU_PEER]), asked) is RefusalReason.UNKNOWN_RESPONSE
