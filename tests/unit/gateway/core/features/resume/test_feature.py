"""Broken answers: the targets that continue them, the number of resumes, and the targets that are spared."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.core.config import CoreConfig
from gateway.core.features.resume.config import ResumeConfig
from gateway.core.features.resume.counts import NO_RESUMES, Resumes, resumes_in, with_resumes
from gateway.core.features.resume.feature import broken_outcome
from gateway.core.kernel import events
from gateway.core.kernel.config import AttemptConfig
from gateway.core.kernel.effects import Effect, EndRequest, StartLeg
from gateway.core.vocabulary import (
    DEFAULT_POOL,
    Extra,
    GatewayId,
    LegResult,
    Notes,
    Outcome,
    PoolSpec,
    RequestId,
    peer_target,
)
from tests.support.core import (
    EU,
    SECOND,
    US,
    Desk,
    desk,
    ended,
    forward,
    of_kind,
    peer_spec,
    policy,
    profile,
    replica_spec,
    rule,
)
from tests.support.core import started as legs_of

REST = replace(profile("r1", prompt="hello and what was said"), appends=True)


def breaks(one: Desk, attempt: int = 1, result: LegResult = LegResult.FAILED, **more: object) -> list[str]:
    """Break the answer after its first token; return the orders that follow."""
    one.first_token("r1", attempt)
    return told(one.finish("r1", result, attempt, detail="it broke off", remainder=REST, **more))


def told(effects: list[Effect]) -> list[str]:
    return [*legs_of(effects), *(outcome for _, outcome in ended(effects))]


def answering(replicas: int = 2, **resume: int | bool) -> Desk:
    one = desk(replicas=replicas, config=CoreConfig(resume=ResumeConfig(**resume)))  # type: ignore[arg-type]
    one.ask("r1")
    return one


def test_another_replica_goes_on_with_the_rest() -> None:
    one = answering()
    (first,) = of_kind(StartLeg, one.effects)
    breaks(one)
    (_, second) = of_kind(StartLeg, one.effects)
    assert second.target != first.target
    assert (first.keeps_answer, first.segment, second.attempt, second.segment) == (True, 0, 2, 1)
    assert one.core.requests[RequestId("r1")].profile is REST
    one.first_token("r1", 2)
    assert ended(one.finish("r1", attempt=2)) == [("r1", Outcome.COMPLETED)]


def test_what_nobody_could_go_on_with_is_broken() -> None:
    one = answering()
    one.first_token("r1")
    assert ended(one.finish("r1", LegResult.FAILED)) == [("r1", Outcome.FAILED_MIDSTREAM)]


def test_nor_where_it_is_off_or_an_end_is_said_to_be_final() -> None:
    assert breaks(answering(enabled=False)) == [Outcome.FAILED_MIDSTREAM]
    assert breaks(answering(), is_final=True) == [Outcome.FAILED_MIDSTREAM]


def test_so_often_and_no_more() -> None:
    one = answering(replicas=5, resumes_max=2)
    breaks(one, 1)
    breaks(one, 2)
    assert breaks(one, 3) == [Outcome.FAILED_MIDSTREAM]
    assert [leg.segment for leg in of_kind(StartLeg, one.effects)] == [0, 1, 2]


def test_a_request_that_may_kill_engines_is_not_carried_from_one_to_the_next() -> None:
    one = answering(replicas=5)
    breaks(one)
    one.finish("r1", LegResult.FAILED, 2)
    (end,) = of_kind(EndRequest, one.finish("r1", LegResult.FAILED, 3))
    assert (end.outcome, end.is_final) == (Outcome.FAILED_MIDSTREAM, True)
    assert "2 in a row" in end.detail


def test_an_engine_that_takes_no_connection_has_died_of_nothing() -> None:
    one = desk(replicas=6, config=CoreConfig(attempt=AttemptConfig(attempts_max=5)))
    one.ask("r1")
    breaks(one)
    for attempt in (2, 3, 4):
        one.finish("r1", LegResult.FAILED, attempt, has_reached=False)
    assert len(of_kind(StartLeg, one.effects)) == 5
    assert not of_kind(EndRequest, one.effects)


def test_tokens_in_between_clear_the_suspicion() -> None:
    one = answering(replicas=6)
    breaks(one)
    one.finish("r1", LegResult.FAILED, 2)
    breaks(one, 3)
    one.finish("r1", LegResult.FAILED, 4)
    assert not of_kind(EndRequest, one.effects)


def test_whoever_knows_no_such_rest_is_not_to_blame_and_somebody_else_may() -> None:
    """The refusing engine may be another version or have a smaller context."""
    one = answering(replicas=3)
    breaks(one)
    second = of_kind(StartLeg, one.effects)[-1].target
    one.finish("r1", LegResult.CLIENT_ERROR, 2)
    third = of_kind(StartLeg, one.effects)[-1]
    assert third.attempt == 3
    assert third.target != second


def test_a_rest_that_every_engine_refuses_is_broken_and_not_refused() -> None:
    one = desk(replicas=3, config=CoreConfig(attempt=AttemptConfig(attempts_max=2)))
    one.ask("r1")
    breaks(one)
    assert not ended(one.finish("r1", LegResult.CLIENT_ERROR, 2))
    assert ended(one.finish("r1", LegResult.CLIENT_ERROR, 3)) == [("r1", Outcome.FAILED_MIDSTREAM)]


def test_it_waits_for_somebody_only_so_long() -> None:
    one = answering(replicas=1, wait_max_ns=2 * SECOND)
    one.first_token("r1")
    one.probe(healthy=False)
    one.finish("r1", LegResult.FAILED, remainder=REST)
    assert not of_kind(EndRequest, one.wait(SECOND))
    assert ended(one.wait(2 * SECOND)) == [("r1", Outcome.FAILED_MIDSTREAM)], "nothing that says that none had begun"


ONE_RETRY = CoreConfig(attempt=AttemptConfig(retry_budget_share=0.0, retry_budget_min=1))


def test_a_spent_retry_budget_goes_on_with_nobody() -> None:
    one = desk(replicas=5, config=ONE_RETRY)
    one.ask("r1")
    breaks(one)
    assert len(breaks(one, 2)) == 1
    assert breaks(one, 3) == [Outcome.FAILED_MIDSTREAM]


def test_all_that_a_target_held_go_on_once_whatever_that_budget_is() -> None:
    """Most answers that a region held would else break with it. Resumes are no further load: the region had it."""
    one = desk(replicas=0, peers=[peer_spec("gw-eu", EU), peer_spec("gw-ap", EU)], config=ONE_RETRY)
    one.hear("gw-eu", EU, available=50)
    names = [f"r{number}" for number in range(20)]
    for name in names:
        one.ask(name)
        one.first_token(name)
    one.hear("gw-ap", EU, available=50)
    for name in names:
        one.finish(name, LegResult.FAILED, remainder=replace(REST, request_id=RequestId(name)))
    assert not of_kind(EndRequest, one.effects)


@pytest.mark.parametrize("has_begun_again", [False, True])
def test_nor_do_they_take_of_it_where_the_next_region_dies_as_well(has_begun_again: bool) -> None:
    others = [peer_spec(name, EU) for name in ("gw-ap", "gw-us", "gw-sa")]
    one = desk(replicas=0, peers=[peer_spec("gw-eu", EU), *others], config=ONE_RETRY)
    one.hear("gw-eu", EU, available=50)
    names = [f"r{number}" for number in range(20)]
    for name in names:
        one.ask(name)
        one.first_token(name)
    rests = {name: replace(REST, request_id=RequestId(name)) for name in names}
    one.hear("gw-ap", EU, available=50)
    one.tell(events.TargetLost(peer_target(GatewayId("gw-eu")), "its connection broke"))
    for name in names:
        assert legs_of(one.finish(name, LegResult.FAILED, remainder=rests[name])) == ["gw-ap"]
        if has_begun_again:
            one.first_token(name, 2)
    one.hear("gw-us", EU, available=50)
    one.tell(events.TargetLost(peer_target(GatewayId("gw-ap")), "its connection broke"))
    for name in names:
        rest = rests[name] if has_begun_again else None
        assert legs_of(one.finish(name, LegResult.FAILED, 2, remainder=rest)) == ["gw-us"]
    assert not of_kind(EndRequest, one.effects)


@pytest.mark.parametrize("used", [Resumes(0), Resumes(1)])
def test_what_went_on_there_already_takes_from_it(used: Resumes) -> None:
    one = desk(replicas=0, peers=[peer_spec(f"gw-{number}", EU) for number in range(4)], config=ONE_RETRY)
    for number in range(4):
        one.hear(f"gw-{number}", EU)
    one.ask("r1")
    assert len(breaks(one, 1, notes=noted(used))) == 1
    assert (breaks(one, 2) == [Outcome.FAILED_MIDSTREAM]) is (used.count == 1)


@pytest.mark.parametrize("by_pool", [False, True])
def test_only_who_continues_a_text_goes_on_with_one(by_pool: bool) -> None:
    specs = [replica_spec("r0"), replace(replica_spec("r1"), appends=by_pool)]
    one = desk(replicas=specs)
    if by_pool:
        specs = [replica_spec("r0"), replace(replica_spec("r1"), pool=DEFAULT_POOL)]
        one.tell(events.AssignmentApplied(2, tuple(specs), (), pools=(PoolSpec(DEFAULT_POOL, appends=False),)))
        one.probe()
    one.ask("r1")
    (first,) = of_kind(StartLeg, one.effects)
    assert first.keeps_answer is (not by_pool and first.target.id == "r0")
    breaks(one)
    assert {leg.target.id for leg in of_kind(StartLeg, one.effects)[1:]} <= {"r0"}


def test_residency_is_judged_anew() -> None:
    one = desk(replicas=0, peers=[peer_spec("gw-eu", EU), peer_spec("gw-ap", EU)], own_policy=policy(US))
    one.hear("gw-eu", EU)
    one.hear("gw-ap", EU)
    one.ask("r1")
    assert len(of_kind(StartLeg, one.effects)) == 1
    one.first_token("r1")
    one.tell(events.PolicyApplied(replace(policy(US), process=rule(US))))
    assert ended(one.finish("r1", LegResult.FAILED, remainder=REST)) == [("r1", Outcome.FAILED_MIDSTREAM)]


def test_how_it_ends_says_that_it_broke() -> None:
    kept = {Outcome.COMPLETED, Outcome.ABANDONED, Outcome.EXPIRED_RUNNING, Outcome.FAILED_INTERNALLY}
    assert {outcome for outcome in Outcome if broken_outcome(outcome) is outcome} >= kept
    assert broken_outcome(Outcome.REJECTED_RESIDENCY_PROCESSING) is Outcome.FAILED_MIDSTREAM
    assert broken_outcome(Outcome.EXPIRED_IN_QUEUE) is Outcome.FAILED_MIDSTREAM


def test_engines_are_asked_for_token_ids_where_that_is_wanted_and_once() -> None:
    """The rest of an answer is written as its client knows it, without token ids."""
    one = answering(token_ids=True)
    breaks(one)
    first, second = of_kind(StartLeg, one.effects)
    assert (first.extras, second.extras) == ((Extra.TOKEN_IDS,), ())
    (plain,) = of_kind(StartLeg, answering().effects)
    assert plain.extras == ()


# One bound per request over all gateways involved


def noted(resumes: Resumes | None) -> Notes:
    return {} if resumes is None else with_resumes({}, resumes)


def of_another(replicas: int = 3, *, left: Resumes | None, goes_on: bool = False) -> Desk:
    """Core that a request, or the rest of one, was forwarded to."""
    one = desk(replicas=replicas, peers=[peer_spec("gw-eu", EU)])
    told = forward("r1")
    told = replace(told, profile=replace(told.profile, appends=goes_on), notes=noted(left))
    one.tell(told)
    return one


def forwarded(*, resumes_max: int = 3) -> Desk:
    """Core that forwards because it has no replicas."""
    names = [f"gw-{number}" for number in range(4)]
    peers = [peer_spec(name, EU) for name in names]
    one = desk(replicas=0, peers=peers, config=CoreConfig(resume=ResumeConfig(resumes_max=resumes_max)))
    for name in names:
        one.hear(name, EU)
    one.ask("r1")
    return one


def left_of(one: Desk) -> list[Resumes | None]:
    return [resumes_in(leg.notes) for leg in of_kind(StartLeg, one.effects)]


def test_a_forward_says_how_often_its_answer_may_still_go_on() -> None:
    one = forwarded()
    breaks(one)
    assert left_of(one) == [Resumes(3), Resumes(2)]
    one.finish("r1", LegResult.FAILED, 2)
    assert left_of(one)[2] == Resumes(2, first_step_deaths=1), "and who has died of it, perhaps"
    (replica,) = of_kind(StartLeg, answering().effects)
    assert resumes_in(replica.notes) is None, "an engine goes on with nothing by itself"


def test_nothing_is_said_of_an_answer_that_cannot_go_on() -> None:
    one = desk(replicas=0, peers=[peer_spec("gw-eu", EU)], config=CoreConfig(resume=ResumeConfig(enabled=False)))
    one.hear("gw-eu", EU)
    one.ask("r1")
    assert left_of(one) == [None]


@pytest.mark.parametrize(("left", "resumes"), [(Resumes(1), 1), (Resumes(0), 0), (Resumes(900), 3), (None, 3)])
def test_who_was_forwarded_it_goes_on_no_more_often_than_it_may(left: Resumes | None, resumes: int) -> None:
    """The gateway's own maximum applies too; a peer of the version before states no number."""
    one = of_another(6, left=left)
    for attempt in range(1, resumes + 1):
        assert breaks(one, attempt) not in ([], [Outcome.FAILED_MIDSTREAM])
    assert breaks(one, resumes + 1) == [Outcome.FAILED_MIDSTREAM]
    (end,) = of_kind(EndRequest, one.effects)
    assert (resumes_in(end.notes) or NO_RESUMES) == Resumes(resumes)


def test_what_was_used_there_is_used() -> None:
    one = forwarded(resumes_max=3)
    breaks(one, notes=noted(Resumes(1)))
    assert [leg.segment for leg in of_kind(StartLeg, one.effects)] == [0, 2]
    assert left_of(one) == [Resumes(3), Resumes(1)]
    assert breaks(one, 2, notes=noted(Resumes(1))) == [Outcome.FAILED_MIDSTREAM]
    (end,) = of_kind(EndRequest, one.effects)
    assert "3 times already" in end.detail


def test_whoever_claims_that_all_was_used_ends_it_and_whoever_says_nothing_used_none() -> None:
    assert breaks(forwarded(), notes=noted(Resumes(1000))) == [Outcome.FAILED_MIDSTREAM]
    one = forwarded(resumes_max=1)
    assert len(breaks(one)) == 1
    assert left_of(one) == [Resumes(1), Resumes(0)]


def test_it_waits_a_moment_only_for_what_others_may_do_and_has_used_none() -> None:
    """The gateway that forwarded the request may use that resume."""
    one = of_another(1, left=Resumes(3))
    one.first_token("r1")
    one.probe(healthy=False)
    one.finish("r1", LegResult.FAILED, remainder=REST)
    assert not of_kind(EndRequest, one.wait(2 * SECOND))
    (end,) = of_kind(EndRequest, one.wait(2 * SECOND))
    assert (end.outcome, resumes_in(end.notes) or NO_RESUMES) == (Outcome.FAILED_MIDSTREAM, Resumes(0))


def test_a_rest_that_is_forwarded_waits_no_longer() -> None:
    """The client has a part of the answer already, and other targets exist."""
    one = of_another(1, left=Resumes(3), goes_on=True)
    told = forward("r2")
    one.probe(healthy=False)
    one.tell(replace(told, profile=replace(told.profile, appends=True)))
    one.tell(forward("r3"))
    assert ended(one.wait(4 * SECOND)) == [("r2", Outcome.EXPIRED_IN_QUEUE)]


def test_deaths_are_carried_to_who_is_forwarded_it() -> None:
    """One engine died of this rest before it was forwarded here; after one more, no target is asked again."""
    one = of_another(left=Resumes(2, first_step_deaths=1), goes_on=True)
    (end,) = of_kind(EndRequest, one.finish("r1", LegResult.FAILED))
    assert (end.outcome, end.is_final) == (Outcome.FAILED_BEFORE_FIRST_BYTE, True)
    assert (resumes_in(end.notes) or NO_RESUMES) == Resumes(0, first_step_deaths=2)
    assert "2 in a row" in end.detail


def test_a_rest_that_was_forwarded_kills_no_more_than_two_either() -> None:
    one = of_another(5, left=Resumes(2), goes_on=True)
    one.finish("r1", LegResult.FAILED)
    (end,) = of_kind(EndRequest, one.finish("r1", LegResult.FAILED, 2))
    assert end.is_final
    assert len(of_kind(StartLeg, one.effects)) == 2


def test_deaths_are_carried_back_to_who_forwarded_it() -> None:
    """One engine died there after the last output, and one dies here."""
    one = forwarded()
    breaks(one, notes=noted(Resumes(1, first_step_deaths=1)))
    (end,) = of_kind(EndRequest, one.finish("r1", LegResult.FAILED, 2))
    assert end.is_final


def test_a_peer_that_counts_has_died_of_nothing_itself() -> None:
    """The peer found no target, and reports that no engine died there."""
    one = forwarded(resumes_max=9)
    breaks(one)
    assert not of_kind(EndRequest, one.finish("r1", LegResult.FAILED, 2, notes=noted(Resumes(0))))
    one.finish("r1", LegResult.FAILED, 3, notes=noted(Resumes(0)))
    (end,) = of_kind(EndRequest, one.finish("r1", LegResult.FAILED, 4, notes=noted(Resumes(0, first_step_deaths=1))))
    assert not end.is_final, "it was tried as often as anything is"
    assert (resumes_in(end.notes) or NO_RESUMES) == Resumes(1, first_step_deaths=1)


def test_nobody_counts_a_rest_among_the_requests_that_it_may_try_again_for() -> None:
    """Each resume of another gateway's request would else earn a share of a retry here."""
    attempt = AttemptConfig(retry_budget_share=1.0, retry_budget_min=1)
    one = desk(replicas=6, peers=[peer_spec("gw-eu", EU)], config=CoreConfig(attempt=attempt))
    for name in ("r1", "r2"):
        told = forward(name)
        one.tell(replace(told, profile=replace(told.profile, appends=True), notes=noted(Resumes(3))))
    assert not of_kind(EndRequest, one.finish("r1", LegResult.FAILED))
    (end,) = of_kind(EndRequest, one.finish("r2", LegResult.FAILED))
    assert "retry budget" in end.detail


def test_late_words_of_whoever_broke_it_change_nothing() -> None:
    """The first engine returns and goes on sending."""
    one = answering(replicas=3)
    breaks(one)
    one.first_token("r1", 2)
    before = len(one.effects)
    one.first_token("r1", 1)
    one.finish("r1", LegResult.COMPLETED, 1)
    one.finish("r1", LegResult.FAILED, 1, remainder=REST)
    assert len(one.effects) == before
    assert ended(one.finish("r1", attempt=2)) == [("r1", Outcome.COMPLETED)]


def test_a_client_that_leaves_in_the_pause_leaves_nothing_behind() -> None:
    one = answering(replicas=1)
    one.first_token("r1")
    one.probe(healthy=False)
    one.finish("r1", LegResult.FAILED, remainder=REST)
    one.tell(events.RequestAbandoned(RequestId("r1")))
    assert ended(one.effects) == [("r1", Outcome.ABANDONED)]
    one.probe()
    assert len(of_kind(StartLeg, one.effects)) == 1
    assert not one.core.requests
    assert len(one.core.waiting) == 0
