"""Prospects of a request: it is refused at once if no target could ever serve it, and names what it waits for
otherwise."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from gateway.core import events
from gateway.core.config import CoreConfig
from gateway.core.kernel.config import OverflowMode, PlacementConfig, PlacementPolicy, PushingConfig, PushingMode
from gateway.core.kernel.effects import Effect, EndRequest
from gateway.core.kernel.forwarding import leg_end_of
from gateway.core.kernel.requests import Hold
from gateway.core.kernel.residency import TenantPolicy, closed_policy
from gateway.core.vocabulary import (
    GatewayId,
    LegResult,
    LoadReport,
    ModelName,
    PeerObservation,
    PeerSpec,
    Place,
    PlaceRule,
    RefusalReason,
    RegionName,
    RequestId,
    TenantName,
    peer_target,
)
from tests.support.core import (
    ANYWHERE,
    AP,
    EU,
    LAYERED,
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
from tests.support.placement import desk_with

RARE = ModelName("rare")
EU_PEER, AP_PEER = peer_spec("gw-eu", EU), peer_spec("gw-ap", AP)
HOME_AND_AP = policy(US, process=rule(US, AP))
FAR = peer_target(GatewayId("gw-far"))
NOWHERE = [("q", "rejected_residency_processing")]


def us(*peers: PeerSpec, own_policy: object = None, **details: object) -> Desk:
    """Gateway whose own replica is up and serves the common model alone."""
    return desk(replicas=1, peers=peers, own_policy=own_policy, **details)  # type: ignore[arg-type]


def knowing_rare_in(place: Place, own_policy: object = None, **details: object) -> Desk:
    peer = peer_spec("gw-far", place)
    one = us(peer, own_policy=own_policy, **details)
    one.hear("gw-far", place, model=RARE)
    return one


def said_nothing(peer: PeerSpec, now_ns: int) -> events.PeersObserved:
    """Heartbeat of a gateway that has no replicas."""
    report = LoadReport(peer.gateway_id, peer.place, 1, accepting=True, assignment_version=1, policy_digest="digest")
    return events.PeersObserved((PeerObservation(report, now_ns, now_ns, 10 * MS, 10 * MS),))


def detail_of(effects: Iterable[Effect]) -> str:
    (end,) = of_kind(EndRequest, effects)
    return end.detail


class TestWhatNobodyCouldServe:
    def test_a_model_that_is_only_where_the_policy_forbids_is_refused_at_once_by_the_name_of_the_rule(self) -> None:
        told = knowing_rare_in(EU, HOME_AND_AP).ask("q", model=RARE)
        assert ended(told) == NOWHERE
        assert detail_of(told) == (
            "`rare` is served only where it may not be processed: "
            "eu-west-1 (process names neither region eu-west-1 nor jurisdiction EU)"
        )

    def test_a_tenants_and_a_keys_own_rule_count_as_well(self) -> None:
        only_home = {TenantName("acme"): TenantPolicy(rule(US))}
        one = knowing_rare_in(EU, policy(US, tenants=only_home))
        assert ended(one.ask("q", model=RARE, tenant="acme")) == NOWHERE
        narrowed = replace(profile("k", model=RARE), process=rule(US))
        told = one.tell(events.RequestArrived(narrowed, SECOND))
        assert ended(told) == [("k", "rejected_residency_processing")]
        assert "the key's own rule: process names neither" in detail_of(told)
        assert started(one.ask("other", model=RARE)) == ["gw-far"]

    def test_a_replica_of_ours_in_a_forbidden_place_does_not_serve_it(self) -> None:
        one = desk(replicas=[replica_spec("adopted", EU)], own_policy=HOME_AND_AP)
        assert ended(one.ask("q")) == NOWHERE

    def test_a_gateway_that_may_see_it_before_replicas_that_may_not(self) -> None:
        """The peer is in an allowed place; its replicas are not."""
        one = us(AP_PEER, own_policy=HOME_AND_AP)
        one.hear("gw-ap", AP)
        assert ended(one.tell(_heard_elsewhere(one))) == []
        assert ended(one.ask("q", model=RARE)) == NOWHERE

    def test_of_many_forbidden_places_a_few_are_named(self) -> None:
        places = [replace(EU, region=RegionName(f"eu-{number}")) for number in range(5)]
        one = us(*(peer_spec(f"gw-{place.region}", place) for place in places), own_policy=HOME_AND_AP)
        for place in places:
            one.hear(f"gw-{place.region}", place, model=RARE)
        told = detail_of(one.ask("q", model=RARE))
        assert told.count("process names neither") == 3
        assert told.endswith("and 2 more regions")

    def test_without_a_usable_policy_nothing_leaves_for_where_it_is_served(self) -> None:
        one = knowing_rare_in(EU, closed_policy(US, "policy.yaml: no such file"))
        assert ended(one.ask("q", model=RARE)) == NOWHERE
        sibling = knowing_rare_in(US, closed_policy(US, "policy.yaml: no such file"))
        assert "policy.yaml: no such file" in detail_of(sibling.ask("q", model=RARE))

    @pytest.mark.parametrize("mode", [OverflowMode.OFF, OverflowMode.SHADOW])
    def test_where_nothing_leaves_the_region_a_model_of_another_is_not_found(self, mode: OverflowMode) -> None:
        config = CoreConfig(placement=PlacementConfig(overflow=mode))
        told = knowing_rare_in(EU, config=config).ask("q", model=RARE)
        assert ended(told) == [("q", "rejected_unknown_model")]
        assert detail_of(told) == "the model `rare` is not served here, and nothing leaves the region"

    def test_a_peer_that_has_only_begun_has_not_lost_what_it_served(self) -> None:
        """A restarted gateway may send heartbeats before its replicas are found."""
        one = knowing_rare_in(EU)
        one.hear("gw-far", EU, model=RARE, available=0)
        assert ended(one.ask("q", model=RARE)) == []
        peer = one.core.peers.get("gw-far")
        assert peer is not None
        assert peer.report is not None
        report = replace(peer.report, capacities=())
        told = one.tell(events.PeersObserved((PeerObservation(report, one.now_ns, one.now_ns, MS, MS),)))
        assert ended(told) == []
        assert ended(one.ask("later", model=RARE)) == []
        assert started(one.hear("gw-far", EU, model=RARE)) == ["gw-far"]

    def test_a_model_that_nobody_has_pushes_no_answer_about_others_out(self) -> None:
        one = knowing_rare_in(EU)
        one.ask("q", model=RARE)
        kept = dict(one.core.peers._answers)
        assert kept
        for number in range(100):
            assert ended(one.ask(f"u{number}", model=ModelName(f"unknown-{number}")))
        assert one.core.peers._answers == kept

    def test_a_model_that_nobody_has_is_not_found_even_while_a_peer_is_silent(self) -> None:
        assert ended(us(EU_PEER).ask("q", model=RARE)) == [("q", "rejected_unknown_model")]


def _heard_elsewhere(one: Desk) -> events.PeersObserved:
    """The gateway in AP reports that its replicas for the rare model are in the EU."""
    (state,) = one.core.peers
    assert state.observation is not None
    (capacity,) = state.observation.report.capacities
    report = replace(
        state.observation.report, sequence=99, capacities=(capacity, replace(capacity, model=RARE, place=EU))
    )
    return events.PeersObserved((replace(state.observation, report=report),))


class TestWhatMayCome:
    """Waiting requests name what they wait for."""

    def test_a_replica_that_is_down(self) -> None:
        one = us()
        one.probe(healthy=False)
        assert ended(one.ask("q")) == []
        assert one.core.why_it_waits(RequestId("q")) == "replica:r0 (unhealthy)"
        assert detail_of(one.wait(60 * SECOND)) == (
            "no replica was free for 60000 ms: it waited for replica:r0 (unhealthy)"
        )

    def test_a_peer_that_may_return(self) -> None:
        one = knowing_rare_in(EU)
        one.tell(events.TargetLost(FAR, "connection refused"))
        assert ended(one.ask("q", model=RARE)) == []
        assert one.core.why_it_waits(RequestId("q")) == "peer:gw-far (lost: connection refused)"
        one.wait(1 * MS)
        assert started(one.hear("gw-far", EU, model=RARE)) == ["gw-far"]

    def test_an_allowed_peer_that_was_never_heard(self) -> None:
        one = us(EU_PEER, AP_PEER, own_policy=HOME_AND_AP)
        one.hear("gw-eu", EU, model=RARE)
        assert ended(one.ask("q", model=RARE)) == []
        assert one.core.why_it_waits(RequestId("q")) == "peer:gw-ap (lost: not heard yet)"
        assert ended(one.hear("gw-ap", AP)) == NOWHERE, "now it has said that it has none"

    def test_the_end_of_a_lockdown(self) -> None:
        one = knowing_rare_in(EU)
        one.tell(events.LockdownChanged(active=True))
        assert ended(one.ask("q", model=RARE)) == []
        assert one.core.why_it_waits(RequestId("q")).endswith("an operator has stopped all forwarding")
        assert started(one.tell(events.LockdownChanged(active=False))) == ["gw-far"]

    def test_many_are_not_all_named(self) -> None:
        one = desk(replicas=6, peers=[EU_PEER], placement=LAYERED)
        one.hear("gw-eu", EU, available=0)
        one.probe(waiting=1)
        one.ask("q")
        told = one.core.why_it_waits(RequestId("q"))
        assert told == (
            "replica:r0 (pending), replica:r1 (pending), replica:r2 (pending), replica:r3 (pending), "
            "2 more replicas, peer:gw-eu (busy)"
        )

    def test_a_replica_that_reads_what_was_sent_before(self) -> None:
        one = desk_with(PlacementPolicy.COST, replicas=1)
        one.ask("first", prompt="a" * 9000)
        assert started(one.ask("q", prompt="b" * 9000, deadline_ns=50 * MS)) == []
        assert one.core.why_it_waits(RequestId("q")) == "replica:r0 (held for it: it reads what was sent before)"
        told = one.wait(50 * MS)
        assert "it waited for replica:r0 (held for it: " in detail_of(told), "the one that gave up is told as much"

    def test_a_replica_that_has_all_that_it_may_be_given(self) -> None:
        placement = PlacementConfig(policy=PlacementPolicy.COST)
        pushing = PushingConfig(mode=PushingMode.OUTSTANDING, outstanding_max=1)
        one = desk(replicas=1, config=CoreConfig(placement=placement, pushing=pushing))
        one.ask("first")
        assert started(one.ask("q")) == []
        assert one.core.why_it_waits(RequestId("q")) == "replica:r0 (held for it: outstanding)"

    def test_a_replica_whose_cache_is_full(self) -> None:
        one = desk_with(PlacementPolicy.COST, replicas=1)
        one.ask("first", prompt="a" * 9000)
        one.ask("q", prompt="b" * 9000)
        one.core.hold(one.core.requests[RequestId("q")], Hold(0, 9000, b"", is_cold=True))
        assert one.core.why_it_waits(RequestId("q")) == (
            "replica:r0 (held for it: its cache is full of what is still wanted)"
        )

    def test_who_runs_waits_for_nobody(self) -> None:
        one = us()
        one.ask("q")
        assert one.core.why_it_waits(RequestId("q")) == one.core.why_it_waits(RequestId("unheard-of")) == ""


class TestOursThatAreAway:
    """Replicas of this gateway that another gateway serves: their models are known, even if that gateway was never
    heard."""

    def away(self, *peers: PeerSpec, own_policy: object = None) -> Desk:
        one = us(*peers, own_policy=own_policy)
        one.tell(events.AssignmentApplied(2, (), peers, away=(RARE,)))
        return one

    def test_a_request_waits_until_whoever_has_them_is_heard(self) -> None:
        one = self.away(EU_PEER, AP_PEER)
        assert ended(one.ask("q", model=RARE)) == []
        assert one.core.why_it_waits(RequestId("q")) == "the gateway that has our replicas now"
        one.hear("gw-ap", AP)
        assert one.core.why_it_waits(RequestId("q")), "who serves something else ends no wait"
        assert started(one.hear("gw-eu", EU, model=RARE)) == ["gw-eu"]

    def test_it_waits_also_where_everybody_was_heard_and_nobody_has_them_yet(self) -> None:
        one = self.away(EU_PEER)
        one.hear("gw-eu", EU)
        assert ended(one.ask("q", model=RARE)) == []
        assert started(one.hear("gw-eu", EU, model=RARE)) == ["gw-eu"]

    def test_what_was_never_ours_is_unknown_all_the_same(self) -> None:
        told = self.away(EU_PEER).ask("q", model=ModelName("never"))
        assert ended(told) == [("q", "rejected_unknown_model")]

    def test_where_the_policy_forbids_the_place_that_has_them_it_may_be_asked_for_again(self) -> None:
        one = self.away(EU_PEER, own_policy=HOME_AND_AP)
        one.hear("gw-eu", EU, model=RARE)
        told = one.ask("q", model=RARE)
        assert ended(told) == [("q", "rejected_queue_full")]
        assert detail_of(told) == "this gateway's replicas of `rare` are away for now"

    def test_where_no_policy_is_usable_it_may_be_asked_for_again(self) -> None:
        one = self.away(EU_PEER, own_policy=closed_policy(US, "policy.yaml: no such file"))
        one.hear("gw-eu", EU, model=RARE)
        assert ended(one.ask("q", model=RARE)) == [("q", "rejected_queue_full")]

    def test_what_whoever_has_them_refuses_by_policy_may_be_asked_for_again(self) -> None:
        one = self.away(EU_PEER)
        one.hear("gw-eu", EU, model=RARE)
        assert started(one.ask("q", model=RARE)) == ["gw-eu"]
        told = one.finish("q", LegResult.REFUSED, refusal=RefusalReason.RESIDENCY_NOT_ACCEPTED, detail="not from there")
        assert ended(told) == [("q", "rejected_queue_full")]
        assert detail_of(told) == "this gateway's replicas of `rare` are away for now"

    def test_an_allowed_place_that_nobody_has_told_of_is_not_waited_for(self) -> None:
        one = us(EU_PEER, own_policy=HOME_AND_AP)
        one.hear("gw-eu", EU, model=RARE)
        assert ended(one.ask("q", model=RARE)) == NOWHERE

    def test_when_they_are_gone_for_good_it_waits_no_longer(self) -> None:
        one = self.away(EU_PEER)
        one.ask("q", model=RARE)
        assert ended(one.tell(events.AssignmentApplied(3, (), (EU_PEER,)))) == [("q", "rejected_unknown_model")]


class TestJudgedAgain:
    """A waiting request ends as soon as no target could serve it any more."""

    def waiting(self, own_policy: object = None) -> Desk:
        one = knowing_rare_in(EU, own_policy)
        one.tell(events.TargetLost(FAR, "gone"))
        one.ask("q", model=RARE)
        assert one.core.why_it_waits(RequestId("q"))
        return one

    def test_when_the_policy_changes(self) -> None:
        assert ended(self.waiting().tell(events.PolicyApplied(HOME_AND_AP))) == NOWHERE

    def test_when_overflow_is_turned_off(self) -> None:
        off = CoreConfig(placement=PlacementConfig(overflow=OverflowMode.OFF))
        assert ended(self.waiting().tell(events.ConfigApplied(off))) == [("q", "rejected_unknown_model")]

    def test_when_the_last_replica_leaves_and_elsewhere_is_forbidden(self) -> None:
        one = us(EU_PEER, own_policy=HOME_AND_AP)
        occupy(one)
        one.hear("gw-eu", EU)
        assert ended(one.ask("q")) == []
        assert ended(one.tell(events.AssignmentApplied(2, (), (EU_PEER,)))) == NOWHERE

    def test_when_the_peer_leaves(self) -> None:
        told = self.waiting().tell(events.AssignmentApplied(2, (replica_spec("r0"),), ()))
        assert ended(told) == [("q", "rejected_unknown_model")]

    def test_when_the_peer_serves_it_no_more(self) -> None:
        one = self.waiting()
        one.wait(1 * MS)
        assert ended(one.hear("gw-far", EU, model=MODEL)) == [("q", "rejected_unknown_model")]

    def test_when_the_last_that_might_have_served_it_says_that_it_serves_nothing(self) -> None:
        """The other peer is known only to serve the model in a place where it may not be processed."""
        near = peer_spec("gw-near", AP)
        one = us(peer_spec("gw-far", EU), near, own_policy=HOME_AND_AP)
        one.hear("gw-far", EU, model=RARE)
        assert ended(one.ask("q", model=RARE)) == []
        assert one.core.why_it_waits(RequestId("q")) == "peer:gw-near (lost: not heard yet)"
        assert ended(one.tell(said_nothing(near, one.now_ns))) == NOWHERE

    def test_everybody_of_a_class_and_nobody_else(self) -> None:
        one = self.waiting()
        one.ask("q2", model=RARE)
        occupy(one)
        one.ask("stays")
        told = ended(one.tell(events.PolicyApplied(HOME_AND_AP)))
        assert told == [*NOWHERE, ("q2", "rejected_residency_processing")]
        assert one.core.why_it_waits(RequestId("stays"))

    def test_a_forward_is_judged_by_its_stamp_and_goes_back_without_anybodys_fault(self) -> None:
        one = us(EU_PEER)
        occupy(one)
        one.tell(forward("q", allowed=rule(EU, US)))
        assert one.core.why_it_waits(RequestId("q"))
        told = one.tell(events.AssignmentApplied(2, (replica_spec("adopted", AP),), (EU_PEER,)))
        assert ended(told) == NOWHERE
        assert "its stamp: process names neither region ap-northeast-1" in detail_of(told)
        (end,) = of_kind(EndRequest, told)
        result, refusal, _ = leg_end_of(end.outcome, end.detail)
        assert (result, refusal) == (LegResult.REFUSED, RefusalReason.RESIDENCY_STAMP)

    def test_who_waits_for_a_stored_response_that_may_not_be_gone_back_to(self) -> None:
        """The response is stored in a place that the policy has come to forbid."""
        one = us(EU_PEER, own_policy=policy(US))
        occupy(one)
        one.hear("gw-eu", EU)
        one.ask("first")
        one.tell(events.ResponseStored(RequestId("first"), 1, 1, "key"))
        one.finish("first")
        one.tell(events.TargetLost(peer_target(EU_PEER.gateway_id), "gone"))
        follows = replace(profile("q"), follows="key")
        assert ended(one.tell(events.RequestArrived(follows, 600 * SECOND))) == []
        assert one.core.why_it_waits(RequestId("q")) == "peer:gw-eu (lost: gone)"
        assert ended(one.tell(events.PolicyApplied(HOME_AND_AP))) == [("q", "rejected_unknown_response")]

    def test_a_peer_that_is_only_busier_is_no_reason_to_look(self) -> None:
        one = us(EU_PEER)
        one.hear("gw-eu", EU, available=1)
        before = one.core.peers.served_version
        one.wait(1 * MS)
        one.hear("gw-eu", EU, available=3, queue=2)
        assert one.core.peers.served_version == before


class TestTurnedAway:
    def refused(self, one: Desk, reason: RefusalReason, attempt: int = 1) -> list[Effect]:
        return one.finish("q", LegResult.REFUSED, attempt, refusal=reason, detail="not from there")

    def test_a_peer_whose_own_policy_keeps_it_out_is_not_waited_for(self) -> None:
        one = knowing_rare_in(EU)
        assert started(one.ask("q", model=RARE)) == ["gw-far"]
        told = self.refused(one, RefusalReason.RESIDENCY_NOT_ACCEPTED)
        assert ended(told) == NOWHERE
        assert detail_of(told) == "gateways that serve the model refused it by policy: peer:gw-far: not from there"

    def test_while_another_may_take_it_it_goes_there(self) -> None:
        one = us(EU_PEER, AP_PEER)
        one.hear("gw-eu", EU, model=RARE, rtt_ms=1)
        one.hear("gw-ap", AP, model=RARE)
        one.ask("q", model=RARE)
        assert started(self.refused(one, RefusalReason.RESIDENCY_NOT_ACCEPTED)) == ["gw-ap"]

    def test_after_too_many_refusals_nobody_is_left_to_wait_for(self) -> None:
        config = replace(CoreConfig(), attempt=replace(CoreConfig().attempt, refusals_max=2))
        one = knowing_rare_in(EU, config=config)
        one.ask("q", model=RARE)
        assert ended(self.refused(one, RefusalReason.BUSY)) == []
        one.wait(1 * MS)
        assert started(one.hear("gw-far", EU, model=RARE)) == ["gw-far"]
        assert ended(self.refused(one, RefusalReason.BUSY, 2)) == [("q", "rejected_queue_full")]


class TestModels:
    def models(self, one: Desk, tenant: TenantName = TENANT, process: PlaceRule | None = None) -> list[str]:
        return list(one.core.models_for(tenant, process))

    def test_only_what_the_caller_could_be_served(self) -> None:
        tenants = {TenantName("acme"): TenantPolicy(rule(US)), TenantName("away"): TenantPolicy(rule(EU))}
        one = knowing_rare_in(EU, policy(US, tenants=tenants))
        assert self.models(one) == [MODEL, RARE]
        assert self.models(one, TenantName("acme")) == [MODEL]
        assert self.models(one, process=rule(US)) == [MODEL]
        assert self.models(one, process=ANYWHERE) == [MODEL, RARE]
        assert self.models(one, TenantName("away")) == [], "it may not even come in"

    def test_the_first_name_that_is_served_is_that_by_the_callers_own_rule(self) -> None:
        acme = TenantName("acme")
        one = knowing_rare_in(EU, policy(US, tenants={acme: TenantPolicy(rule(US))}))
        names = [RARE, MODEL]
        assert one.core.first_served(names, TENANT, None, "") == RARE
        assert one.core.first_served(names, acme, None, "") == MODEL
        assert one.core.first_served(names, TENANT, rule(US), "") == MODEL

    def test_not_what_overflow_would_be_needed_for(self) -> None:
        off = CoreConfig(placement=PlacementConfig(overflow_by_model={RARE: OverflowMode.OFF}))
        assert self.models(knowing_rare_in(EU, config=off)) == [MODEL]
