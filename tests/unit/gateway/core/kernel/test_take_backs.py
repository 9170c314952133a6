"""Legs at a target that has fallen silent, or will soon be gone: those that can be saved are taken back, and the others
are left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from msgspec.structs import replace

from gateway.core.config import CoreConfig
from gateway.core.events import ConfigApplied
from gateway.core.features.lockdown.events import LockdownChanged
from gateway.core.features.resume.config import ResumeConfig
from gateway.core.kernel import events
from gateway.core.kernel.attempts import BreakerState
from gateway.core.kernel.config import AttemptConfig, IdentityRule, OverflowMode, PlacementConfig
from gateway.core.kernel.effects import Effect, EndRequest, StartLeg, StopLeg, TakeBackLeg
from gateway.core.kernel.residency import TenantPolicy
from gateway.core.placement.placer import Placer
from gateway.core.vocabulary import (
    GatewayId,
    LegResult,
    Outcome,
    RefusalReason,
    ReplicaSpec,
    RequestId,
    ServiceClass,
    Standing,
    peer_target,
)
from tests.support.core import (
    AP,
    EU,
    EU_PEER,
    MS,
    SECOND,
    TENANT,
    US,
    Desk,
    desk,
    ended,
    of_kind,
    peer_spec,
    policy,
    profile,
    replica_spec,
    rule,
    started,
)

AP_PEER = peer_spec("gw-ap", AP)
ALARM = events.TargetLost(peer_target(GatewayId("gw-eu")), "it gave no sign of life for 1.5 s", is_silent=True)
REST = replace(profile("q", prompt="hello and what was said"), appends=True)


def forwarded(*names: str, config: CoreConfig | None = None, home: bool = True, own: ReplicaSpec | None = None) -> Desk:
    """Gateway whose requests of these names run at the peer in the EU; afterwards its own replica, if `home`, has been
    idle for long enough to take any number of requests, and the peer in Asia was not heard yet."""
    config = config or CoreConfig()
    config = replace(config, attempt=replace(config.attempt, ramp_limit=1))
    one = desk(replicas=1 if own is None else [own], peers=[EU_PEER, AP_PEER], config=config)
    one.probe(healthy=False)
    one.hear("gw-eu", EU, available=len(names) + 1)
    for name in names:
        assert started(one.ask(name)) == ["gw-eu"]
    if home:
        one.wait(1 * MS)
        one.probe()
        one.wait(1 * SECOND)
        one.probe()
    return one


def taken_back(effects: Iterable[Effect]) -> list[tuple[str, bool]]:
    """Requests whose legs are to be taken back, and whether a part of their answers may have been sent."""
    return [(each.request_id, each.may_append) for each in of_kind(TakeBackLeg, effects)]


def is_taken_back(one: Desk, name: str = "q", attempt: int = 1, **more: object) -> list[Effect]:
    return one.finish(name, LegResult.TAKEN_BACK, attempt, detail=ALARM.detail, **more)


def test_a_request_without_an_answer_is_taken_back_and_placed_elsewhere() -> None:
    one = forwarded("q")
    assert taken_back(one.tell(ALARM)) == [("q", True)]
    assert started(is_taken_back(one)) == ["r0"]
    assert ended(one.finish("q", attempt=2)) == [("q", Outcome.COMPLETED)]


def test_an_answer_goes_on_elsewhere() -> None:
    one = forwarded("q")
    one.first_token("q")
    assert taken_back(one.tell(ALARM)) == [("q", True)]
    (order,) = of_kind(StartLeg, is_taken_back(one, remainder=REST))
    assert (order.target.id, order.segment) == ("r0", 1)


def test_a_connection_that_broke_ends_its_legs_by_itself() -> None:
    one = forwarded("q")
    reset = one.tell(replace(ALARM, is_silent=False))
    assert (of_kind(TakeBackLeg, reset), of_kind(StopLeg, reset)) == ([], [])


def test_nothing_is_held_against_the_target() -> None:
    one = forwarded("a", "b", "c", "d", "e", "f", config=CoreConfig(attempt=AttemptConfig(breaker_failures_in_row=1)))
    one.tell(ALARM)
    for name in "abcdef":
        is_taken_back(one, name)
    one.wait(1 * MS)
    one.hear("gw-eu", EU)
    state = one.core.peers.get("gw-eu")
    assert state is not None
    assert (state.breaker.state, state.distrusted_since_ns) == (BreakerState.CLOSED, None)
    assert state.standing in (Standing.AVAILABLE, Standing.RAMP)


def test_neither_retries_nor_their_budget_are_used() -> None:
    one = forwarded("q", config=CoreConfig(attempt=AttemptConfig(retry_budget_min=0, retry_budget_share=0.0)))
    one.tell(ALARM)
    assert started(is_taken_back(one)) == ["r0"]
    assert one.core.requests[RequestId("q")].failures == 0


def test_further_rests_use_none_of_the_budget_either() -> None:
    config = CoreConfig(attempt=AttemptConfig(retry_budget_min=0, retry_budget_share=0.0))
    one = forwarded("q", config=config)
    one.first_token("q")
    one.tell(ALARM)
    is_taken_back(one, remainder=REST)
    one.first_token("q", 2)
    assert started(one.finish("q", LegResult.TAKEN_BACK, 2, remainder=REST)) == ["r0"]


def test_what_only_the_silent_target_serves_is_left_alone() -> None:
    one = forwarded("q", home=False)
    assert taken_back(one.tell(ALARM)) == []
    assert ended(one.finish("q")) == [("q", Outcome.COMPLETED)]


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_request_stays_where_all_others_are_full(has_begun: bool) -> None:
    """Room there may not come in time, while the silent target may be heard again."""
    one = forwarded("q")
    one.probe(waiting=9)
    one.hear("gw-ap", AP, available=0)
    if has_begun:
        one.first_token("q")
    assert taken_back(one.tell(ALARM)) == []
    one.hear("gw-eu", EU, available=0, queue=3)
    assert ended(one.finish("q")) == [("q", Outcome.COMPLETED)]


def test_so_is_a_peer() -> None:
    one = forwarded("q", home=False)
    one.hear("gw-ap", AP)
    assert taken_back(one.tell(ALARM)) == [("q", True)]


def test_no_more_is_taken_back_than_there_is_room_for() -> None:
    one = forwarded("a", "b", "c", "d", home=False)
    one.hear("gw-ap", AP, available=2)
    one.first_token("d")
    assert [name for name, _ in taken_back(one.tell(ALARM))] == ["d", "a"]


def test_nor_at_two_alarms_in_a_row() -> None:
    """The first one's legs may end after the second alarm."""
    one = desk(replicas=1, peers=[EU_PEER, AP_PEER], config=CoreConfig(attempt=AttemptConfig(ramp_limit=1)))
    one.probe(healthy=False)
    one.hear("gw-eu", EU)
    one.ask("a")
    one.hear("gw-ap", AP)
    one.ask("b")
    one.wait(1 * MS)
    one.tell(events.AssignmentApplied(2, (replace(replica_spec("r0"), slots=1),), (EU_PEER, AP_PEER)))
    one.probe()
    first, second = one.tell(ALARM), one.tell(replace(ALARM, target=peer_target(GatewayId("gw-ap"))))
    assert (len(taken_back(first)), len(taken_back(second))) == (1, 0)


def test_a_target_that_returns_is_given_one_leg_at_a_time() -> None:
    one = forwarded("a", "b", "c")
    one.probe(healthy=False)
    one.wait(1 * MS)
    one.probe()
    assert len(taken_back(one.tell(ALARM))) == 1


def test_requests_that_yield_are_taken_back_to_spare_room_alone() -> None:
    """A replica that is available to others may have no room for these for ever."""
    one = forwarded(own=replace(replica_spec("r0"), slots=2))
    one.probe(healthy=False)
    one.hear("gw-eu", EU, available=2, room=4)
    batch = replace(profile("q"), service_class=ServiceClass.BATCH)
    assert started(one.tell(events.RequestArrived(batch, one.now_ns + 600 * SECOND))) == ["gw-eu"]
    one.wait(1 * MS)
    one.probe(running=1)
    assert started(one.ask("other")) == ["r0"]
    assert taken_back(one.tell(ALARM)) == []


class TestRulesInForce:
    """Rules that changed since a request was forwarded: its peer finishes it under the old ones."""

    def test_a_lockdown_leaves_forwards_alone(self) -> None:
        one = forwarded("q", home=False)
        one.hear("gw-ap", AP)
        one.first_token("q")
        one.tell(LockdownChanged(active=True, cut=False))
        assert taken_back(one.tell(ALARM)) == []

    def test_but_own_replicas_go_on_with_them(self) -> None:
        one = forwarded("q")
        one.first_token("q")
        one.tell(LockdownChanged(active=True, cut=False))
        assert taken_back(one.tell(ALARM)) == [("q", True)]

    def test_so_does_a_policy_that_allows_no_other_place(self) -> None:
        one = forwarded("q", home=False)
        one.hear("gw-ap", AP)
        one.tell(events.PolicyApplied(policy(US, process=rule(US, EU))))
        assert taken_back(one.tell(ALARM)) == []

    def test_and_one_that_lets_the_tenant_in_no_more(self) -> None:
        one = forwarded("q")
        elsewhere = policy(US, tenants={TENANT: TenantPolicy(rule(EU))})
        one.tell(events.PolicyApplied(replace(elsewhere, digest="narrower")))
        assert taken_back(one.tell(ALARM)) == []

    def test_and_overflow_that_is_off(self) -> None:
        one = forwarded("q", home=False)
        one.hear("gw-ap", AP)
        one.tell(ConfigApplied(CoreConfig(placement=PlacementConfig(overflow=OverflowMode.OFF))))
        assert taken_back(one.tell(ALARM)) == []


def test_targets_that_failed_the_request_are_no_others() -> None:
    one = desk(replicas=1, peers=[EU_PEER, AP_PEER])
    assert started(one.ask("q")) == ["r0"]
    one.hear("gw-eu", EU)
    assert started(one.finish("q", LegResult.FAILED)) == ["gw-eu"]
    one.wait(1 * MS)
    one.probe()
    assert taken_back(one.tell(ALARM)) == []
    one.hear("gw-eu", EU)
    one.hear("gw-ap", AP)
    assert taken_back(one.tell(ALARM)) == [("q", True)]


def test_nor_is_one_that_failed_it_as_the_silent_target_did() -> None:
    """A request that all targets failed may be tried at any of them again, but is not moved among them."""
    one = desk(replicas=1, peers=[EU_PEER])
    one.ask("q")
    one.hear("gw-eu", EU)
    assert started(one.finish("q", LegResult.FAILED)) == ["gw-eu"]
    one.finish("q", LegResult.FAILED, 2)
    one.wait(1 * MS)
    assert started(one.hear("gw-eu", EU)) == ["gw-eu"]
    one.probe()
    assert taken_back(one.tell(ALARM)) == []


def test_nor_is_a_peer_that_did() -> None:
    one = desk(replicas=0, peers=[EU_PEER, AP_PEER])
    one.hear("gw-ap", AP)
    assert started(one.ask("q")) == ["gw-ap"]
    one.hear("gw-eu", EU)
    assert started(one.finish("q", LegResult.FAILED)) == ["gw-eu"]
    one.finish("q", LegResult.FAILED, 2)
    one.wait(1 * MS)
    assert started(one.hear("gw-eu", EU)) == ["gw-eu"]
    one.hear("gw-ap", AP)
    assert taken_back(one.tell(ALARM)) == []


def test_an_order_tells_the_identity_that_it_rests_on() -> None:
    one = desk(replicas=1, peers=[EU_PEER, AP_PEER])
    one.probe(healthy=False)
    one.hear("gw-eu", EU, identity="revision 1")
    one.ask("q")
    one.first_token("q")
    one.hear("gw-ap", AP, identity="revision 1")
    (order,) = of_kind(TakeBackLeg, one.tell(ALARM))
    assert order.identity == "revision 1"


def wait_for_a_minute(one: Desk, hear: Callable[[], list[Effect]]) -> list[EndRequest]:
    """Let the longest wait pass while `hear` brings the same news again and again. Returns the ends of requests."""
    ends: list[EndRequest] = []
    for _ in range(700):
        ends += of_kind(EndRequest, one.wait(100 * MS))
        ends += of_kind(EndRequest, hear())
    return ends


def test_a_request_that_ends_beside_a_target_with_room_after_it_was_taken_back_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = forwarded("q", home=False)
    one.hear("gw-ap", AP)
    one.tell(ALARM)
    monkeypatch.setattr(Placer, "place", lambda *_: None)
    is_taken_back(one)
    with pytest.raises(AssertionError, match="what is taken back goes on"):
        wait_for_a_minute(one, lambda: one.hear("gw-ap", AP))


def test_one_for_which_the_room_is_gone_ends_as_any_that_waits_too_long() -> None:
    one = forwarded("q")
    one.tell(ALARM)
    one.probe(waiting=9)
    is_taken_back(one)
    (end,) = wait_for_a_minute(one, lambda: one.probe(waiting=9))
    assert end.outcome is Outcome.EXPIRED_IN_QUEUE


def test_nor_are_peers_that_may_not_have_it() -> None:
    one = forwarded(home=False)
    one.hear("gw-eu", EU, available=0)
    one.hear("gw-ap", AP)
    assert started(one.ask("q")) == ["gw-ap"]
    one.hear("gw-eu", EU)
    refused = one.finish("q", LegResult.REFUSED, refusal=RefusalReason.RESIDENCY_NOT_ACCEPTED)
    assert started(refused) == ["gw-eu"]
    one.wait(1 * MS)
    one.hear("gw-ap", AP)
    assert taken_back(one.tell(ALARM)) == []


def test_an_answer_that_is_not_to_be_continued_is_left_alone() -> None:
    one = forwarded("begun", "new", config=CoreConfig(resume=ResumeConfig(enabled=False)))
    one.first_token("begun")
    assert taken_back(one.tell(ALARM)) == [("new", False)]


def test_nor_one_that_was_continued_as_often_as_it_may_be() -> None:
    one = forwarded("q", config=CoreConfig(resume=ResumeConfig(resumes_max=1)))
    one.first_token("q")
    one.tell(ALARM)
    one.probe(healthy=False)
    one.hear("gw-ap", AP)
    assert started(is_taken_back(one, remainder=REST)) == ["gw-ap"]
    one.first_token("q", 2)
    one.probe()
    again = one.tell(replace(ALARM, target=peer_target(GatewayId("gw-ap"))))
    assert taken_back(again) == []


def test_answers_come_before_requests_whose_clients_have_nothing() -> None:
    one = forwarded("new", "begun", "newer")
    one.first_token("begun")
    assert [name for name, _ in taken_back(one.tell(ALARM))] == ["begun", "new", "newer"]


def test_a_request_that_silences_one_target_after_the_other_is_not_carried_on_for_ever() -> None:
    one = forwarded("q", config=CoreConfig(attempt=AttemptConfig(attempts_max=2)))
    one.tell(ALARM)
    one.probe(healthy=False)
    one.hear("gw-ap", AP)
    assert started(is_taken_back(one)) == ["gw-ap"]
    one.probe()
    assert taken_back(one.tell(replace(ALARM, target=peer_target(GatewayId("gw-ap"))))) == []


def test_a_leg_that_is_being_stopped_ends_by_that() -> None:
    one = forwarded("q")
    one.tell(events.RequestAbandoned(RequestId("q")))
    assert taken_back(one.tell(ALARM)) == []


def test_an_answer_is_left_alone_where_all_others_have_another_model() -> None:
    one = desk(replicas=1, peers=[EU_PEER, AP_PEER])
    one.probe(healthy=False)
    one.hear("gw-eu", EU, available=2, identity="revision 1")
    one.ask("begun")
    one.ask("new")
    one.first_token("begun")
    one.hear("gw-ap", AP, identity="revision 2")
    assert [name for name, _ in taken_back(one.tell(ALARM))] == ["new"]


def test_a_rule_for_identities_holds_before_the_first_token() -> None:
    rule = AttemptConfig(model_identity=IdentityRule.SAME)
    one = desk(replicas=1, peers=[EU_PEER, AP_PEER], config=CoreConfig(attempt=rule))
    one.probe(healthy=False)
    one.hear("gw-eu", EU, available=2, identity="revision 1")
    one.ask("q")
    one.hear("gw-ap", AP, identity="revision 2")
    assert taken_back(one.tell(ALARM)) == []
    one.hear("gw-eu", EU, available=2, identity="revision 1")
    one.hear("gw-ap", AP, identity="revision 1")
    assert [name for name, _ in taken_back(one.tell(ALARM))] == ["q"]
    (order,) = of_kind(StartLeg, is_taken_back(one))
    assert order.identity is not None
    assert order.identity.name == "revision 1"


def test_it_waits_as_long_as_after_any_failure() -> None:
    one = forwarded("q")
    one.wait(one.core.config.queue.wait_max_ns + 1 * SECOND)
    one.probe(waiting=9)
    one.hear("gw-eu", EU)
    one.tell(ALARM)
    assert not of_kind(EndRequest, is_taken_back(one))


def test_a_false_alarm_costs_latency_alone() -> None:
    """The target may have the request again with its next heartbeat."""
    one = forwarded("q")
    one.tell(ALARM)
    one.probe(healthy=False)
    assert started(is_taken_back(one)) == []
    one.wait(50 * MS)
    assert started(one.hear("gw-eu", EU, available=2) + one.wait(1 * SECOND)) == ["gw-eu"]


@pytest.mark.parametrize("result", [LegResult.COMPLETED, LegResult.FAILED])
def test_a_leg_that_was_left_alone_ends_as_any_other(result: LegResult) -> None:
    one = forwarded("q")
    one.first_token("q")
    one.tell(ALARM)
    expected = Outcome.COMPLETED if result is LegResult.COMPLETED else Outcome.FAILED_MIDSTREAM
    assert ended(one.finish("q", result)) == [("q", expected)]
