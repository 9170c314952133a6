from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.core.config import CoreConfig
from gateway.core.kernel import events
from gateway.core.kernel.config import OverflowMode, PlacementConfig
from gateway.core.kernel.effects import Effect, EndRequest, StartLeg, StopLeg
from gateway.core.kernel.events import FirstToken, LegEnded, RequestAbandoned
from gateway.core.kernel.requests import PHASES_AFTER, Phase, RequestRecord, RequestState
from gateway.core.vocabulary import (
    Hops,
    LegResult,
    LegRole,
    ModelName,
    Outcome,
    RefusalReason,
    ReplicaId,
    ReplicaRole,
    RequestId,
    RequestProfile,
    Standing,
    TenantName,
    replica_target,
)
from tests.support.core import EU, MODEL, MS, SECOND, US, Desk, desk, occupy, peer_spec, profile, replica_spec
from tests.support.orders import forward_from_eu
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


def ask(at: Desk, request_id: str, **changes: Any) -> RequestRecord:
    """Record of a client's request."""
    at.tell(events.RequestArrived(replace(profile(request_id), **changes), at.now_ns + 60 * SECOND))
    assert at.core.arrived is not None
    assert at.core.arrived.request_id == request_id
    return at.core.arrived


def forward(at: Desk, request_id: str, **changes: Any) -> RequestRecord:
    """Record of a forward from eu-1."""
    at.tell(replace(forward_from_eu(profile(request_id), at.now_ns + 60 * SECOND), **changes))
    assert at.core.arrived is not None
    return at.core.arrived


class TestRecord:
    def test_it_has_each_leg_from_its_start_to_its_end(self) -> None:
        at = desk()
        record = ask(at, "q")
        at.now_ns += 20 * MS
        at.tell(FirstToken(ASKED, 1, 1))
        at.now_ns += 10 * MS
        ended = LegEnded(ASKED, 1, 1, LegResult.COMPLETED, output_tokens=9)
        (end,) = at.tell(ended)
        (leg,) = record.legs
        assert (leg.attempt, leg.number, leg.target, leg.place) == (1, 1, replica_target(ReplicaId("r0")), US)
        assert (leg.started_ns, leg.first_token_ns, leg.ended_ns) == (0, 20 * MS, 30 * MS)
        assert (leg.result, leg.replicas_here, leg.policy) == (LegResult.COMPLETED, 2, at.core.policy)
        assert leg.ended is ended
        assert (record.model, record.arrived_ns, record.origin, record.policy) == (MODEL, 0, None, at.core.policy)
        assert (record.first_leg, record.first_token_ns, record.number_of(leg)) == (leg, 20 * MS, None)
        assert record.end is end

    def test_what_is_rejected_on_arrival_has_one(self) -> None:
        record = ask(desk(), "q", model=ModelName("nobody's"))
        assert record.end is not None
        assert (record.end.outcome, record.legs) == (Outcome.REJECTED_UNKNOWN_MODEL, [])

    def test_a_forward_s_has_its_origin_and_its_refusal(self) -> None:
        at = desk(peers=[peer_spec("eu-1", EU)])
        record = forward(at, "f")
        assert record.origin is not None
        assert (record.origin.gateway_id, record.origin.hops, record.origin.place) == ("eu-1", Hops(0, 1), EU)
        assert record.origin.policy.digest == "digest-of-eu"
        assert record.refusal is None
        refused = forward(at, "g", hops=Hops(0, 2))
        assert refused.refusal is not None
        assert (refused.refusal.reason, refused.legs, refused.end) == (RefusalReason.HOP_LIMIT, [], None)

    def test_the_refusal_of_a_duplicate_does_not_touch_that_of_the_request_that_runs(self) -> None:
        at = desk(peers=[peer_spec("eu-1", EU)])
        record = ask(at, "q")
        assert forward(at, "q") is not record
        assert at.core.requests[ASKED].record is record
        assert record.refusal is None

    def test_late_and_repeated_events_change_nothing(self) -> None:
        at = desk()
        record = ask(at, "q")
        at.tell(FirstToken(ASKED, 1, 1))
        at.now_ns += 10 * MS
        at.tell(FirstToken(ASKED, 1, 1))
        at.tell(LegEnded(ASKED, 1, 1, LegResult.COMPLETED))
        end = record.end
        at.tell(LegEnded(ASKED, 1, 1, LegResult.FAILED))
        assert (record.first_token_ns, record.legs[0].first_token_ns) == (0, 0)
        assert record.legs[0].result is LegResult.COMPLETED
        assert record.end is end

    def test_the_first_token_of_a_resumed_answer_stays_the_first(self) -> None:
        at = desk()
        record = ask(at, "q")
        at.now_ns += 10 * MS
        at.tell(FirstToken(ASKED, 1, 1))
        at.tell(LegEnded(ASKED, 1, 1, LegResult.FAILED, remainder=replace(profile("q"), appends=True)))
        at.now_ns += 10 * MS
        at.tell(FirstToken(ASKED, 2, 1))
        assert [(leg.attempt, leg.segment, leg.first_token_ns) for leg in record.legs] == [
            (1, 0, 10 * MS),
            (2, 1, 20 * MS),
        ]
        assert (record.first_leg, record.first_token_ns) == (record.legs[0], 10 * MS)

    def test_a_token_that_was_not_sent_is_not_the_request_s_first(self) -> None:
        at = desk()
        record = ask(at, "q")
        at.core.handle(FirstToken(ASKED, 1, 1, is_sent=False), at.now_ns)
        assert record.legs[0].first_token_ns == 0
        assert (record.first_leg, record.first_token_ns) == (None, None)

    @pytest.mark.parametrize("failing", [1, 2])
    def test_of_two_legs_either_may_end_the_attempt(self, failing: int) -> None:
        legs = Legs((LegRole.WHOLE, LegRole.WHOLE))
        record = legs.desk.core.requests[ASKED].record
        legs.end(failing, LegResult.FAILED)
        legs.end(3 - failing, LegResult.CANCELLED)
        first, second = record.legs[:2]
        assert (first if failing == 1 else second).result is LegResult.FAILED
        assert [record.number_of(leg) for leg in record.legs] == [1, 2, None]
        assert (record.ended_by(1), record.ended_by(2), record.ended_by(3)) == (LegResult.FAILED, None, None)
        assert record.end is None, "it is tried again"

    def test_a_leg_has_the_policy_and_place_of_its_start(self) -> None:
        at = desk()
        record = ask(at, "q")
        policy = at.core.policy
        at.tell(events.PolicyApplied(replace(policy, digest="the next")))
        at.tell(events.AssignmentApplied(9, (), ()))
        assert (record.legs[0].policy, record.legs[0].place) == (policy, US)

    def test_a_decode_worker_is_not_counted_among_the_replicas_for_a_model(self) -> None:
        at = desk()
        specs = [replica_spec("r0"), replica_spec("r1"), replace(replica_spec("r2"), role=ReplicaRole.DECODE)]
        at.tell(events.AssignmentApplied(9, tuple(specs), ()))
        assert ask(at, "q").legs[0].replicas_here == 2

    def test_a_forward_in_shadow_mode_is_in_it(self) -> None:
        at = desk(peers=[peer_spec("eu-1", EU)], config=SHADOWED)
        occupy(at)
        at.hear("eu-1", EU)
        shadow = ask(at, "q").shadow
        assert shadow is not None
        assert shadow in at.effects

    def test_it_names_neither_tenant_nor_text(self) -> None:
        record = ask(desk(), "q", tenant=TenantName("acme"), session_key="a secret")
        (leg,) = record.legs
        kept = [getattr(each, name) for each in (record, leg) for name in dir(each) if not name.startswith("__")]
        assert record.request_id in kept
        assert not any(isinstance(each, RequestProfile) for each in kept)
        assert not [each for each in kept if "acme" in str(each) or "secret" in str(each)]


SHADOWED = CoreConfig(placement=PlacementConfig(overflow=OverflowMode.SHADOW))
