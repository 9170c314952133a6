from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.core.effects import EndRequest
from gateway.core.events import LegAccepted, LegEnded, RequestArrived, ResponseStored
from gateway.core.vocabulary import (
    Hops,
    LegResult,
    Outcome,
    ReplicaId,
    RequestId,
    RequestProfile,
    TenantName,
    replica_target,
)
from gateway.records.ledger import RequestRecord
from gateway.request.legs import RanAt, RequestSummary
from tests.support.core import EU, MS, SECOND, US, desk, peer_spec, profile
from tests.support.followed import FAILS, Followed
from tests.support.orders import leg_order

LAST = (Outcome.FAILED_MIDSTREAM, "", 1)


class Handed(Followed):
    """Followed core with the records of finished requests."""

    def __init__(self, replicas: int = 2, open_max: int = 100) -> None:
        super().__init__(desk(replicas=replicas, peers=[peer_spec("eu-1", EU)]), open_max=open_max)
        self.records: list[RequestRecord | None] = []
        self.ledger.hand_to(lambda _profile, _end, _summary, record: self.records.append(record))
        self.watch()

    def only(self) -> RequestRecord:
        (record,) = self.records
        assert record is not None
        return record

    def open(self, request_id: str) -> RequestRecord:
        record = self.ledger.get(RequestId(request_id))
        assert record is not None
        return record


def test_a_request_is_followed_to_its_end_and_handed_over_once() -> None:
    followed = Handed()
    followed.ask("r-1")
    for event in (LegAccepted(RequestId("r-1"), 1, 1), ResponseStored(RequestId("r-1"), 1, 1, "key")):
        followed.desk.now_ns += 10 * MS
        followed.tell(event)
    followed.first_token("r-1")
    followed.desk.now_ns += 10 * MS
    followed.end("r-1", output_tokens=9)
    assert followed.records == []
    followed.finish("r-1", RanAt(ReplicaId("r0"), US))
    record = followed.only()
    (leg,) = record.legs
    assert (leg.attempt, leg.leg, leg.target, leg.place) == (1, 1, replica_target(ReplicaId("r0")), US)
    assert (leg.started_ns, leg.first_token_ns, leg.ended_ns) == (0, 20 * MS, 30 * MS)
    assert (leg.result, leg.replicas_here) == (LegResult.COMPLETED, 2)
    assert leg.ended is not None
    assert leg.ended.output_tokens == 9
    assert (record.origin, record.first_token_ns, record.number_of(leg)) == (None, 20 * MS, None)
    assert record.end is not None
    assert record.end.outcome is Outcome.COMPLETED
    assert record.ran_at == RanAt(ReplicaId("r0"), US)
    assert len(followed.ledger) == 0


@pytest.mark.parametrize("how", ["refused", "unheard of"])
def test_what_never_was_ours_leaves_nothing_behind(how: str) -> None:
    followed = Handed()
    if how == "refused":
        followed.forward("f-1", hops=Hops(0, 2))
    else:
        followed.end("f-1")
        followed.step(LegEnded(RequestId("f-1"), 1, 1, LegResult.FAILED), [EndRequest(RequestId("f-1"), *LAST)])
    assert len(followed.ledger) == 0


def test_a_refused_double_does_not_touch_the_one_that_runs() -> None:
    followed = Handed()
    followed.ask("r-1")
    record = followed.open("r-1")
    followed.forward("r-1")
    assert followed.open("r-1") is record


@pytest.mark.parametrize("failing", [1, 2])
def test_of_two_legs_either_may_fail(failing: int) -> None:
    followed = Handed()
    followed.two_legs("r-1")
    followed.two_ends("r-1", FAILS[failing])
    record = followed.open("r-1")
    assert tuple(leg.result for leg in record.legs) == FAILS[failing]
    assert [record.number_of(leg) for leg in record.legs] == [1, 2]
    assert record.ended_by(1) is LegResult.FAILED
    assert record.end is None, "the request goes on"
    assert (record.ended_by(2), record.leg(2, 1)) == (None, None)


def test_a_leg_after_the_first_token_goes_on_with_the_same_record() -> None:
    followed = Handed()
    followed.ask("r-1")
    followed.desk.now_ns += 10 * MS
    followed.first_token("r-1")
    resumed = leg_order("r-1", 2, replica_target(ReplicaId("r1")))
    followed.step(LegEnded(RequestId("r-1"), 1, 1, LegResult.FAILED), [resumed])
    followed.desk.now_ns += 10 * MS
    followed.first_token("r-1", leg=2)
    record = followed.open("r-1")
    assert [leg.first_token_ns for leg in record.legs] == [10 * MS, 20 * MS]
    assert record.first_token_ns == 10 * MS


def test_late_and_double_words_about_a_leg_change_nothing() -> None:
    followed = Handed()
    followed.ask("r-1")
    followed.first_token("r-1")
    followed.desk.now_ns += 10 * MS
    followed.first_token("r-1")
    followed.end("r-1")
    followed.step(LegEnded(RequestId("r-1"), 1, 1, LegResult.FAILED), [EndRequest(RequestId("r-1"), *LAST)])
    record = followed.open("r-1")
    assert (record.first_token_ns, record.legs[0].result) == (0, LegResult.COMPLETED)
    assert record.end is not None
    assert record.end.outcome is Outcome.COMPLETED


def test_an_id_that_comes_again_before_the_first_answer_is_out_mixes_nothing_up() -> None:
    followed = Handed()
    followed.ask("r-1")
    followed.end("r-1", LegResult.CLIENT_ERROR)
    first, first_end, record = followed.profiles["r-1"], followed.ends["r-1"], followed.open("r-1")
    followed.ask("r-1")
    followed.ledger.on_finished(first, first_end, RequestSummary())
    assert followed.only() is record
    followed.end("r-1")
    second = followed.open("r-1")
    followed.finish("r-1")
    assert followed.records == [record, second]
    assert len(followed.ledger) == 0


def test_what_came_after_a_crash_of_the_core_has_no_record() -> None:
    followed = Handed()
    followed.ask("r-1")
    unseen = EndRequest(RequestId("r-1"), Outcome.FAILED_BEFORE_FIRST_BYTE, "crash", 0)
    followed.ledger.on_finished(profile("r-1"), unseen, RequestSummary())
    assert followed.records == [None]
    followed.ledger.on_finished(followed.profiles["r-1"], unseen, RequestSummary(ran_at=RanAt(ReplicaId("r0"), US)))
    (_, record) = followed.records
    assert record is not None, "it came before"
    assert (record.end, record.ran_at) == (None, None), "the core never said this word"


def test_one_that_fails_costs_nobody_else_the_record() -> None:
    followed = Handed()
    told: list[str] = []

    def failing(number: int) -> Callable[..., None]:
        def take(made: RequestProfile, *_: object) -> None:
            told.append(made.request_id)
            raise RuntimeError(f"boom {number}")

        return take

    for number in (1, 2):
        followed.ledger.hand_to(failing(number))
    followed.ledger.hand_to(lambda made, *_: told.append(made.request_id))
    followed.ask("r-1")
    followed.end("r-1")
    with pytest.raises(RuntimeError, match="boom 1"):
        followed.finish("r-1")
    assert told == ["r-1", "r-1", "r-1"]
    assert len(followed.ledger) == 0


def test_of_too_many_the_oldest_go_without() -> None:
    followed = Handed(open_max=2)
    asked = [profile(name) for name in "abbc"]  # added by hand: the core would not take the second b
    for each in asked:
        followed.step(RequestArrived(each, 60 * SECOND))
    assert [followed.ledger.has_forgotten(each) for each in asked] == [True, True, False, False]
    assert [followed.ledger.get(RequestId(name)) is not None for name in "abc"] == [False, True, True]
    end = EndRequest(RequestId("a"), Outcome.COMPLETED, "", 1)
    for each in asked:
        followed.ledger.on_finished(each, end, RequestSummary())
    assert [record is None for record in followed.records] == [True, True, False, False]
    assert not any(followed.ledger.has_forgotten(each) for each in asked), "nothing is kept of what is over"


def test_a_record_names_neither_tenant_nor_text() -> None:
    followed = Handed(replicas=0)
    followed.desk.hear("eu-1", EU)
    followed.ask("r-1", tenant=TenantName("acme"), session_key="a secret")
    followed.end("r-1")
    followed.finish("r-1")
    kept = repr(followed.only())
    assert "eu-1" in kept
    assert "acme" not in kept
    assert "secret" not in kept
