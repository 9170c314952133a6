"""A core whose answers break: who goes on with them, how often, and who is spared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core import events
from gateway.core.config import AttemptConfig, CoreConfig, ResumeConfig
from gateway.core.effects import Effect, EndRequest, StartLeg
from gateway.core.resume import broken_outcome
from gateway.core.vocabulary import DEFAULT_POOL, Extra, LegResult, Outcome, PoolSpec, RequestId
from tests.support.core import (
    EU,
    SECOND,
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
)
from tests.support.core import started as legs_of

REST = replace(profile("r1", prompt="hello and what was said"), goes_on=True)


def breaks(one: Desk, attempt: int = 1, result: LegResult = LegResult.FAILED, **more: object) -> list[str]:
    """After its first token. Gives what is ordered then."""
    one.first_token("r1", attempt)
    return told(one.finish("r1", result, attempt, detail="it broke off", rest=REST, **more))


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
    assert (first.may_break, first.resume, second.attempt, second.resume) == (True, 0, 2, 1)
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
    assert [leg.resume for leg in of_kind(StartLeg, one.effects)] == [0, 1, 2]


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
    """Another version, a smaller context."""
    one = answering(replicas=3)
    breaks(one)
    second = of_kind(StartLeg, one.effects)[-1].target
    one.finish("r1", LegResult.CLIENT_ERROR, 2)
    third = of_kind(StartLeg, one.effects)[-1]
    assert third.attempt == 3
    assert third.target != second


def test_it_waits_for_somebody_only_so_long() -> None:
    one = answering(replicas=1, wait_max_ns=2 * SECOND)
    one.first_token("r1")
    one.probe(healthy=False)
    one.finish("r1", LegResult.FAILED, rest=REST)
    assert not of_kind(EndRequest, one.wait(SECOND))
    assert ended(one.wait(2 * SECOND)) == [("r1", Outcome.FAILED_MIDSTREAM)], "nothing that says that none had begun"


def test_a_spent_retry_budget_goes_on_with_nobody() -> None:
    attempt = AttemptConfig(retry_budget_share=0.0, retry_budget_min=1)
    one = desk(replicas=4, config=CoreConfig(attempt=attempt))
    one.ask("r1")
    breaks(one)
    assert breaks(one, 2) == [Outcome.FAILED_MIDSTREAM]


@pytest.mark.parametrize("by_pool", [False, True])
def test_only_who_continues_a_text_goes_on_with_one(by_pool: bool) -> None:
    specs = [replica_spec("r0"), replace(replica_spec("r1"), continues=by_pool)]
    one = desk(replicas=specs)
    if by_pool:
        specs = [replica_spec("r0"), replace(replica_spec("r1"), pool=DEFAULT_POOL)]
        one.tell(events.AssignmentApplied(2, tuple(specs), (), pools=(PoolSpec(DEFAULT_POOL, resumes=False),)))
        one.probe()
    one.ask("r1")
    (first,) = of_kind(StartLeg, one.effects)
    assert first.may_break is (not by_pool and first.target.id == "r0")
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
    assert ended(one.finish("r1", LegResult.FAILED, rest=REST)) == [("r1", Outcome.FAILED_MIDSTREAM)]


def test_how_it_ends_says_that_it_broke() -> None:
    kept = {Outcome.COMPLETED, Outcome.ABANDONED, Outcome.EXPIRED_RUNNING, Outcome.FAILED_INTERNALLY}
    assert {outcome for outcome in Outcome if broken_outcome(outcome) is outcome} >= kept
    assert broken_outcome(Outcome.REJECTED_RESIDENCY_PROCESSING) is Outcome.FAILED_MIDSTREAM
    assert broken_outcome(Outcome.EXPIRED_IN_QUEUE) is Outcome.FAILED_MIDSTREAM


def test_engines_are_asked_for_token_ids_where_that_is_wanted_and_once() -> None:
    """A rest is written as its client knows it, without them."""
    one = answering(token_ids=True)
    breaks(one)
    first, second = of_kind(StartLeg, one.effects)
    assert (first.extras, second.extras) == ((Extra.TOKEN_IDS,), ())
    (plain,) = of_kind(StartLeg, answering().effects)
    assert plain.extras == ()
