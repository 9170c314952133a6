from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.effects import Effect, EndRequest, StartLeg, StopLeg
from gateway.core.events import FirstToken, LegEnded, RequestAbandoned
from gateway.core.requests import PHASES_AFTER, Phase, RequestState
from gateway.core.vocabulary import LegResult, LegRole, Outcome, RequestId, Standing
from tests.support.core import SECOND, Desk, desk
from tests.support.second_legs import open_leg

ASKED = RequestId("q")


@dataclass
class Legs:
    """One request in two legs: a prefill at `r0` and a decode at `r1`, or the roles that a test gives them."""

    roles: tuple[LegRole, LegRole] = (LegRole.PREFILL, LegRole.DECODE)
    desk: Desk = field(default_factory=desk)

    def __post_init__(self) -> None:
        (first,) = (effect for effect in self.desk.ask(ASKED) if isinstance(effect, StartLeg))
        request = self.desk.core.requests[ASKED]
        assert request.attempt is not None
        request.attempt.legs[1].role = self.roles[0]
        other = "r1" if first.target.id == "r0" else "r0"
        self.second = open_leg(self.desk.core, ASKED, self.roles[1], other, self.desk.now_ns)
        self.desk.checker.after(LegEnded(ASKED, 0, 0, LegResult.COMPLETED), [self.second], self.desk.now_ns)

    def end(self, leg: int, result: LegResult, attempt: int = 1) -> list[Effect]:
        return self.desk.tell(LegEnded(ASKED, attempt, leg, result, detail=f"leg {leg}"))

    def first_token(self, leg: int) -> list[Effect]:
        return self.desk.tell(FirstToken(ASKED, 1, leg))

    @property
    def outcome(self) -> Outcome | None:
        ends = [effect.outcome for effect in self.desk.effects if isinstance(effect, EndRequest)]
        assert len(ends) < 2
        return ends[0] if ends else None

    @property
    def in_flight(self) -> list[int]:
        return [state.in_flight for state in self.desk.core.replicas]

    def check_gone(self) -> None:
        assert self.in_flight == [0, 0]
        assert self.desk.core.requests == {}


def stopped(effects: list[Effect]) -> list[int]:
    return [effect.leg for effect in effects if isinstance(effect, StopLeg)]


def test_legs_are_numbered_and_both_count_at_their_targets() -> None:
    legs = Legs()
    assert (legs.second.attempt, legs.second.leg, legs.second.role) == (1, 2, LegRole.DECODE)
    assert legs.in_flight == [1, 1]


def test_a_prefill_that_is_over_leaves_the_decode_alone() -> None:
    legs = Legs()
    assert legs.end(1, LegResult.COMPLETED) == []
    assert legs.in_flight.count(1) == 1
    legs.first_token(2)
    legs.end(2, LegResult.COMPLETED)
    assert legs.outcome is Outcome.COMPLETED
    legs.check_gone()


def test_whoever_fails_has_the_other_stopped_and_is_alone_to_blame() -> None:
    legs = Legs()
    assert stopped(legs.end(1, LegResult.FAILED)) == [2]
    assert legs.outcome is None, "the other leg has not reported yet"
    retried = legs.end(2, LegResult.CANCELLED)
    (again,) = (effect for effect in retried if isinstance(effect, StartLeg))
    assert (again.attempt, again.leg, again.target) == (2, 1, legs.second.target), "the other target failed nobody"
    standings = {state.target: state.standing for state in legs.desk.core.replicas}
    assert standings[legs.second.target] is Standing.AVAILABLE
    assert sum(standing is Standing.DISTRUSTED for standing in standings.values()) == 1
    legs.end(1, LegResult.COMPLETED, attempt=2)
    assert legs.outcome is Outcome.COMPLETED
    legs.check_gone()


def test_an_answer_that_came_whole_counts_though_another_leg_failed_first() -> None:
    legs = Legs()
    legs.end(1, LegResult.FAILED)
    legs.end(2, LegResult.COMPLETED)
    assert legs.outcome is Outcome.COMPLETED
    legs.check_gone()


def test_a_failure_after_the_first_token_of_either_leg_ends_the_request() -> None:
    legs = Legs((LegRole.WHOLE, LegRole.WHOLE))
    legs.first_token(1)
    assert stopped(legs.end(2, LegResult.FAILED)) == [1]
    legs.end(1, LegResult.CANCELLED)
    assert legs.outcome is Outcome.FAILED_MIDSTREAM
    legs.check_gone()


def test_legs_that_all_end_without_an_answer_are_a_failure() -> None:
    legs = Legs((LegRole.PREFILL, LegRole.PREFILL))
    legs.end(1, LegResult.COMPLETED)
    legs.end(2, LegResult.COMPLETED)
    assert legs.outcome is Outcome.FAILED_BEFORE_FIRST_BYTE
    legs.check_gone()


def test_a_passed_deadline_stops_every_leg() -> None:
    legs = Legs()
    assert stopped(legs.desk.wait(121 * SECOND)) == [1, 2], "no first token came in time"
    legs.end(1, LegResult.CANCELLED)
    legs.end(2, LegResult.CANCELLED)
    assert legs.desk.core.requests[ASKED].phase is Phase.WAITING, "it is tried again once somebody has been heard"


@pytest.mark.parametrize("later", [LegResult.CANCELLED, LegResult.FAILED, LegResult.COMPLETED])
def test_an_error_of_ours_in_either_leg_ends_the_request_and_stops_the_other(later: LegResult) -> None:
    legs = Legs((LegRole.WHOLE, LegRole.WHOLE))
    assert stopped(legs.end(2, LegResult.INTERNAL)) == [1]
    assert legs.outcome is Outcome.FAILED_INTERNALLY
    legs.end(1, later)
    assert legs.outcome is Outcome.FAILED_INTERNALLY
    legs.check_gone()


@pytest.mark.parametrize("later", [LegResult.CLIENT_ERROR, LegResult.FAILED, LegResult.CANCELLED, LegResult.INTERNAL])
def test_once_the_client_has_its_answer_nothing_can_spoil_it(later: LegResult) -> None:
    """Neither the other leg, nor the deadline, nor the client's leaving changes the outcome."""
    legs = Legs()
    assert stopped(legs.end(2, LegResult.COMPLETED)) == [1]
    assert legs.outcome is Outcome.COMPLETED
    legs.desk.wait(700 * SECOND)
    legs.desk.tell(RequestAbandoned(ASKED))
    legs.end(1, later)
    assert legs.outcome is Outcome.COMPLETED
    legs.check_gone()


def test_each_leg_that_failed_is_kept_away_from_and_a_failure_weighs_more_than_being_busy() -> None:
    legs = Legs()
    legs.end(1, LegResult.BUSY)
    legs.end(2, LegResult.FAILED)
    request = legs.desk.core.requests[ASKED]
    assert (request.failures, request.busy_answers) == (1, 0)
    assert request.failed_at == (legs.second.target,)


def test_both_that_failed_are_kept_away_from() -> None:
    legs = Legs()
    legs.end(2, LegResult.FAILED)
    legs.end(1, LegResult.FAILED)
    assert len(legs.desk.core.requests[ASKED].failed_at) == 2


def test_a_leg_is_told_to_stop_once() -> None:
    legs = Legs()
    assert stopped(legs.end(1, LegResult.FAILED)) == [2]
    assert stopped(legs.desk.wait(700 * SECOND)) == []


def test_a_late_word_of_an_ended_leg_changes_nothing() -> None:
    legs = Legs()
    legs.end(1, LegResult.COMPLETED)
    for late in (
        LegEnded(ASKED, 1, 1, LegResult.FAILED),
        FirstToken(ASKED, 1, 1),
        LegEnded(ASKED, 1, 7, LegResult.FAILED),
    ):
        assert legs.desk.tell(late) == []
    assert legs.outcome is None


steps = st.one_of(
    st.tuples(st.just("first token"), st.sampled_from([1, 2])),
    st.tuples(st.sampled_from(LegResult), st.sampled_from([1, 2])),
    st.just(("leaves", 0)),
)


@given(
    roles=st.sampled_from(
        [(LegRole.PREFILL, LegRole.DECODE), (LegRole.WHOLE, LegRole.WHOLE), (LegRole.WHOLE, LegRole.PREFILL)]
    ),
    told=st.lists(steps, max_size=8),
)
def test_in_whatever_order_legs_end_the_request_ends_once_and_nothing_is_left(
    roles: tuple[LegRole, LegRole], told: list[tuple[str, int]]
) -> None:
    """The checker runs after every event; events of ended legs are included."""
    legs = Legs(roles)
    for what, leg in told:
        if what == "first token":
            legs.first_token(leg)
        elif what == "leaves":
            legs.desk.tell(RequestAbandoned(ASKED))
        elif what is not LegResult.REFUSED:  # only peers refuse
            legs.end(leg, LegResult(what))
    for attempt in (1, 2, 3, 4):
        for leg in (1, 2):
            legs.end(leg, LegResult.CANCELLED, attempt)
    legs.desk.tell(RequestAbandoned(ASKED))
    assert legs.outcome is not None
    legs.check_gone()


@pytest.mark.parametrize(
    ("before", "after"), [(before, after) for before in Phase for after in Phase if after not in PHASES_AFTER[before]]
)
def test_a_request_goes_no_way_that_the_table_does_not_name(before: Phase, after: Phase) -> None:
    request: RequestState = Legs().desk.core.requests[ASKED]
    request.phase = before
    with pytest.raises(AssertionError):
        request.move_to(after)
