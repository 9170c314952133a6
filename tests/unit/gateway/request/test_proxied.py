"""One request from its arrival to its last byte, with a real core in virtual time."""

from __future__ import annotations

import errno

import pytest
from msgspec.structs import replace

from gateway.core.kernel import events
from gateway.core.kernel.attempts import BreakerState
from gateway.core.kernel.config import AttemptConfig
from gateway.core.kernel.description import gauges_of
from gateway.core.kernel.effects import StopLeg
from gateway.core.kernel.events import ResponseStored
from gateway.core.kernel.requests import RequestRecord
from gateway.core.response_key import response_key
from gateway.core.vocabulary import LegResult, Outcome, RefusalReason, RequestId, Standing, TargetKind
from gateway.request.answer import AnswerSettings
from gateway.request.legs import LegFailure
from gateway.request.proxied import ProxiedRequest
from tests.fakes.engine import (
    DONE,
    GOOD_ANSWER,
    GOOD_MESSAGE_STREAM,
    GOOD_RESPONSE,
    GOOD_RESPONSE_STREAM,
    GOOD_STREAM,
    ROLE,
    chat_chunk,
    error_event,
    response_created,
    token,
)
from tests.support.core import MODEL, MS, TENANT, US, policy, profile, replica_spec, rule
from tests.support.proxied import (
    FAILED,
    GOOD,
    JSON,
    MESSAGE_OVERLOADED,
    RESPONSE_LIMITED,
    SILENCE,
    Piece,
    RecordingSink,
    Reply,
    Scene,
    Script,
)


class TestTurns:
    """Order of effects within one input and after it."""

    def test_the_engine_is_asked_before_begin_returns(self) -> None:
        scene = Scene()
        scene.request(Reply()).begin()
        assert scene.opener.opened == 1

    def test_effects_arrive_after_the_input_that_caused_them(self) -> None:
        """The port of these tests asserts this at every input; here is one that causes an effect at once."""
        scene = Scene()
        request = scene.request(FAILED, SILENCE)
        request.begin()
        assert scene.opener.opened == 2, "the failure within the first order has led to another"
        opened: list[int] = []

        def fails() -> None:
            scene.leg.listener.on_failed(FAILED)
            opened.append(scene.opener.opened)

        scene = Scene()
        scene.request(SILENCE, SILENCE).begin()
        scene.leg.is_over = True
        scene.port.give(fails)
        assert (opened, scene.opener.opened) == ([1], 2)

    def test_a_finished_request_is_handed_over_after_all_that_came_before(self) -> None:
        scene = Scene()
        scene.play(Reply())
        assert scene.events_at_end == scene.port.events
        assert isinstance(scene.events_at_end[-1], events.LegEnded)

    def test_a_request_that_is_turned_away_is_handed_over_too(self) -> None:
        scene = Scene()
        scene.port.submit(events.DrainRequested())
        assert scene.play() is Outcome.REJECTED_DRAINING
        assert [type(event) for event in scene.events_at_end[-2:]] == [events.DrainRequested, events.RequestArrived]


class TestDelivered:
    """The engine's behaviour after the last event has no effect on the client."""

    @pytest.mark.parametrize("pieces", [GOOD_STREAM, GOOD_RESPONSE_STREAM, GOOD_MESSAGE_STREAM, (GOOD,)])
    @pytest.mark.parametrize("forwarded", [False, True])
    def test_a_client_that_leaves_behind_the_last_event_has_its_answer(
        self, pieces: tuple[bytes, ...], forwarded: bool
    ) -> None:
        scene = Scene()
        request = scene.begin(Reply((*pieces, SILENCE)), forwarded=forwarded)
        scene.leave(request)
        scene.check()
        assert scene.end.outcome is Outcome.COMPLETED
        assert scene.sink.body == b"".join(pieces)
        (ended,) = scene.legs_ended
        assert (ended.result, ended.prompt_tokens, ended.output_tokens) == (LegResult.COMPLETED, 22, 6)
        assert scene.summary.attempts[0].endswith(": completed")
        assert (scene.summary.prompt_tokens, scene.summary.output_tokens) == (22, 6)

    def test_one_that_leaves_before_has_not(self) -> None:
        scene = Scene()
        scene.leave(scene.begin(Reply((*GOOD_STREAM[:-1], SILENCE))))
        scene.check()
        assert scene.end.outcome is Outcome.ABANDONED
        assert scene.results == [LegResult.CANCELLED]

    def test_the_leg_is_over_for_the_core_with_the_last_event_whatever_the_engine_still_does(self) -> None:
        scene = Scene()
        request = scene.begin(Reply((*GOOD_STREAM, SILENCE)))
        assert scene.results == [LegResult.COMPLETED]
        assert gauges_of(scene.core, scene.port.now).attempts == 0
        assert (scene.leg.is_over, scene.sink.ends) == (False, []), "its connection may be used again"
        scene.leg.go_on()
        scene.finish(request)
        scene.check()
        assert scene.leg.stops == 0

    def test_a_client_that_leaves_twice_leaves_once(self) -> None:
        scene = Scene()
        request = scene.begin(Reply((ROLE, SILENCE)))
        scene.leave(request)
        scene.leave(request)
        scene.check()
        assert scene.count(events.RequestAbandoned) == 1

    def test_a_client_that_leaves_after_the_end_changes_nothing(self) -> None:
        scene = Scene()
        request = scene.begin(Reply())
        scene.leave(request)
        scene.check()
        assert scene.end.outcome is Outcome.COMPLETED
        assert scene.count(events.RequestAbandoned) == 0


class TestPrompts:
    """Prompt tokens of a request whose client has left: they count once an engine has the request."""

    def test_an_engine_that_has_it_when_the_client_leaves_has_taken_it(self) -> None:
        scene = Scene()
        scene.leave(scene.begin(Reply((SILENCE,))))
        scene.check()
        assert scene.summary.prompt_taken

    def test_no_engine_has_it_while_it_waits(self) -> None:
        scene = Scene()
        scene.probe(waiting=1)
        scene.leave(scene.begin())
        scene.check()
        assert not scene.summary.prompt_taken

    def test_looking_up_a_stored_answer_or_counting_generates_nothing(self) -> None:
        assert Scene().request().summary.generates
        assert not Scene().request(is_control=True).summary.generates
        assert not Scene().request(path="/v1/messages/count_tokens").summary.generates

    def test_an_engine_that_still_works_on_it_at_the_deadline_has_taken_it(self) -> None:
        scene = Scene()
        assert scene.play(Reply((SILENCE,)), deadline_ns=10 * MS) is Outcome.EXPIRED_RUNNING
        assert scene.summary.prompt_taken

    def test_one_that_brought_no_first_token_in_time_has_failed(self) -> None:
        scene = Scene(attempts=AttemptConfig(first_token_deadline_ns=10 * MS, attempts_max=1))
        assert scene.play(Reply((ROLE, SILENCE))) is Outcome.FAILED_BEFORE_FIRST_BYTE
        assert not scene.summary.prompt_taken

    @pytest.mark.parametrize("reply", [FAILED, Reply((b"full",), 503, JSON), Reply((b"{}",), 400, JSON)])
    def test_one_that_failed_or_turned_it_down_has_not_taken_it(self, reply: Script) -> None:
        scene = Scene(attempts=AttemptConfig(attempts_max=1, refusals_max=0))
        scene.play(reply)
        assert not scene.summary.prompt_taken


class TestRetries:
    @pytest.mark.parametrize(
        ("bad", "result"),
        [
            (FAILED, LegResult.FAILED),
            (LegFailure(LegResult.BUSY, "full"), LegResult.BUSY),
            (Reply((FAILED,)), LegResult.FAILED),
            (Reply((b"oops",), 500, JSON), LegResult.FAILED),
            (Reply((), 502, ()), LegResult.FAILED),
            (Reply((b"full",), 503, JSON), LegResult.BUSY),
            (Reply((b"full",), 429, JSON), LegResult.BUSY),
            (Reply((b"slow",), 408, JSON), LegResult.FAILED),
            (Reply((b'{"error":"Unauthorized"}',), 401, JSON), LegResult.FAILED),
            (Reply((b"see there",), 307, ()), LegResult.FAILED),
            (Reply((), 204, ()), LegResult.FAILED),
            (Reply((error_event(503), DONE)), LegResult.BUSY),
            (Reply((error_event(429), DONE)), LegResult.BUSY),
            (Reply((MESSAGE_OVERLOADED,)), LegResult.BUSY),
            (Reply((RESPONSE_LIMITED,)), LegResult.BUSY),
            (Reply((error_event(500), DONE)), LegResult.FAILED),
            (Reply((ROLE, error_event(500), DONE)), LegResult.FAILED),
            (Reply((ROLE + token("x") + error_event(500),)), LegResult.FAILED),
            (Reply((b'data: {"error": "no idea"}\n\n', DONE)), LegResult.FAILED),
            (Reply((DONE,)), LegResult.FAILED),
            (Reply((ROLE, DONE)), LegResult.FAILED),
            (Reply(()), LegResult.FAILED),
            (Reply((b": keep-alive\n\n",)), LegResult.FAILED),
            (Reply((ROLE, FAILED)), LegResult.FAILED),
            (Reply((ROLE, chat_chunk({"content": ""}, "abort"), DONE)), LegResult.FAILED),
            (Reply((b"data: <html>\n\n",)), LegResult.FAILED),
            (Reply((b"",), 200, JSON), LegResult.FAILED),
            (Reply((b"<html>",), 200, (("content-type", "text/html"),)), LegResult.FAILED),
            (Reply((GOOD_ANSWER[:20], FAILED), 200, JSON), LegResult.FAILED),
            (Reply((b'{"choices":[{"finish_reason":"abort"}]}',), 200, JSON), LegResult.FAILED),
        ],
    )
    @pytest.mark.parametrize("is_narrow", [False, True])
    def test_what_fails_before_the_first_byte_is_tried_elsewhere(
        self, bad: Script, result: LegResult, is_narrow: bool
    ) -> None:
        scene = Scene()
        scene.sink.is_narrow = is_narrow
        assert scene.play(bad, Reply()) is Outcome.COMPLETED
        assert scene.results == [result, LegResult.COMPLETED]
        assert scene.sink.body == GOOD
        attempts = scene.summary.attempts
        assert [attempt.split(": ")[1] for attempt in attempts] == [result, "completed"]
        assert {attempt.split(": ")[0] for attempt in attempts} == {"replica:a", "replica:b"}
        assert scene.faults == []

    @pytest.mark.parametrize(
        ("pieces", "relayed"),
        [
            ((ROLE, token("x"), FAILED), ROLE + token("x")),
            ((ROLE, token("x"), error_event(500), DONE), ROLE + token("x")),
            ((ROLE, token("x"), token("y")[:15], FAILED), ROLE + token("x")),
            ((ROLE, token("x"), token("y")[:15]), ROLE + token("x")),
            ((ROLE, token("x")), ROLE + token("x")),
            ((ROLE, token("x"), chat_chunk({"content": "y"}, "abort"), DONE), ROLE + token("x")),
        ],
    )
    def test_after_the_first_byte_there_is_no_second_try(self, pieces: tuple[Piece, ...], relayed: bytes) -> None:
        scene = Scene()
        assert scene.play(Reply(pieces), Reply()) is Outcome.FAILED_MIDSTREAM
        assert scene.sink.body == relayed
        assert scene.results == [LegResult.FAILED]
        assert scene.summary.started

    def test_both_replicas_failing_is_an_error_before_the_first_byte(self) -> None:
        scene = Scene()
        assert scene.play(FAILED, FAILED) is Outcome.FAILED_BEFORE_FIRST_BYTE
        assert scene.sink.head is None

    def test_a_leg_that_is_stopped_makes_room_for_another(self) -> None:
        scene = Scene(attempts=AttemptConfig(first_token_deadline_ns=10 * MS))
        assert scene.play(Reply((ROLE, SILENCE)), Reply()) is Outcome.COMPLETED
        assert scene.results == [LegResult.CANCELLED, LegResult.COMPLETED]
        assert scene.opener.legs[0].stops == 1
        assert scene.sink.body == GOOD

    def test_what_was_never_sent_is_not_counted_as_sent(self) -> None:
        """Tokens of an engine that does not count them are counted by the events that the client got."""
        scene = Scene()
        assert scene.play(Reply((ROLE, ROLE, ROLE, FAILED)), Reply()) is Outcome.COMPLETED
        alone = Scene()
        alone.play(Reply())
        assert scene.summary.output_events == alone.summary.output_events


class TestStoredResponses:
    @pytest.mark.parametrize("forwarded", [False, True])
    @pytest.mark.parametrize("reply", [Reply(GOOD_RESPONSE_STREAM), Reply((GOOD_RESPONSE,), headers=JSON)])
    def test_the_core_is_told_before_the_client_can_know(self, reply: Reply, forwarded: bool) -> None:
        scene = Scene()
        assert scene.play(reply, stores_response=True, forwarded=forwarded) is Outcome.COMPLETED
        kinds = [type(event) for event in scene.port.events]
        told = events.FirstToken if events.FirstToken in kinds else events.LegEnded
        assert kinds.index(ResponseStored) < kinds.index(told)
        (stored,) = [event for event in scene.port.events if isinstance(event, ResponseStored)]
        assert stored == ResponseStored(RequestId("r1"), 1, 1, response_key(TENANT, "resp_1"))

    def test_an_answer_too_large_to_hold_is_stored_all_the_same(self) -> None:
        scene = Scene(AnswerSettings(held_bytes_max=20))
        assert scene.play(Reply((GOOD_RESPONSE,), headers=JSON), stores_response=True) is Outcome.COMPLETED
        assert scene.count(ResponseStored) == 1

    @pytest.mark.parametrize("reply", [Reply(GOOD_RESPONSE_STREAM), Reply((GOOD_RESPONSE,), headers=JSON)])
    def test_one_that_is_not_kept_is_not_reported(self, reply: Reply) -> None:
        scene = Scene()
        assert scene.play(reply) is Outcome.COMPLETED
        assert scene.count(ResponseStored) == 0

    def test_one_that_fails_before_its_first_token_is_had_elsewhere_under_another_id(self) -> None:
        scene = Scene()
        broken = Reply((response_created("resp_0"), FAILED))
        assert scene.play(broken, Reply(GOOD_RESPONSE_STREAM), stores_response=True) is Outcome.COMPLETED
        assert scene.sink.body == b"".join(GOOD_RESPONSE_STREAM)
        keys = [event.key for event in scene.port.events if isinstance(event, ResponseStored)]
        assert keys == [response_key(TENANT, "resp_1")]

    def test_what_a_stored_response_says_of_itself_is_no_fault_of_now(self) -> None:
        failed = b'{"object":"response","status":"failed","error":{"code":"server_error"}}'
        scene = Scene()
        assert scene.play(Reply((failed,), headers=JSON), is_control=True) is Outcome.COMPLETED
        assert scene.sink.body == failed


class TestLeaving:
    @pytest.mark.parametrize(
        "script", [SILENCE, Reply((SILENCE,)), Reply((ROLE, SILENCE)), Reply((ROLE, token("x"), SILENCE))]
    )
    def test_a_client_may_leave_while_its_leg_connects_waits_or_answers(self, script: Script) -> None:
        scene = Scene()
        scene.leave(scene.begin(script))
        scene.check()
        assert scene.end.outcome is Outcome.ABANDONED
        assert scene.results == [LegResult.CANCELLED]
        assert (scene.leg.stops, scene.opener.opened) == (1, 1)

    def test_a_client_may_leave_while_its_request_waits_in_the_queue(self) -> None:
        scene = Scene()
        scene.probe(waiting=3)
        scene.leave(scene.begin())
        scene.check()
        assert scene.count(events.RequestAbandoned) == 1
        assert scene.opener.opened == 0

    def test_a_client_may_leave_while_its_buffer_is_full(self) -> None:
        scene = Scene()
        scene.sink.is_narrow, scene.sink.reads_after_s = True, 1.0
        scene.leave(scene.begin(Reply()))
        scene.check()
        assert scene.end.outcome is Outcome.ABANDONED

    def test_a_leg_that_the_core_orders_while_it_learns_of_that_is_not_opened(self) -> None:
        """The leg's end comes before the news that the client has left, so the core may try again in between."""
        scene = Scene()
        request = scene.begin(Reply((ROLE, SILENCE)))
        order = replace(scene.orders[0], attempt=2)

        def leaves() -> None:
            request.client_left()
            request.on_effect(order)

        scene.port.give(leaves)
        assert scene.opener.opened == 1
        ended = [(each.attempt, each.result) for each in scene.legs_ended]
        assert ended == [(1, LegResult.CANCELLED), (2, LegResult.CANCELLED)]
        assert scene.end.outcome is Outcome.ABANDONED


OURS = [
    UnicodeEncodeError("latin-1", "secret \u20ac", 7, 8, "ordinal not in range"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    ValueError("secret: a header would break out of its line"),
    KeyError("choices"),
    TypeError("unhashable type: 'list'"),
    IndexError("out of range"),
    AttributeError("no such thing"),
    AssertionError("an answer is unread"),
    RecursionError("too deep"),
    MemoryError(),
    RuntimeError("the transport is closed"),
    NotImplementedError(),
    EOFError(),
    OverflowError("too large"),
    ZeroDivisionError(),
    TimeoutError("nobody asked for this one"),
    OSError(errno.EMFILE, "Too many open files"),
    OSError(errno.ENOSPC, "No space left on device"),
    ConnectionResetError("which nobody called a failure of the target's"),
]
"""Exceptions of an opener, a leg or a sink other than a target's LegFailure."""


@pytest.mark.parametrize("kind", TargetKind)
@pytest.mark.parametrize("error", OURS, ids=lambda error: type(error).__name__)
class TestErrorsOfOurs:
    """Errors of the gateway end the request once, as its own, and count against no target."""

    @staticmethod
    def scene(kind: TargetKind) -> Scene:
        scene = Scene(attempts=AttemptConfig(attempts_max=3, breaker_failures_in_row=1))
        if kind is TargetKind.PEER:
            scene.probe(waiting=1)
            scene.hear()
        return scene

    @staticmethod
    def assert_ours(scene: Scene, kind: TargetKind, error: BaseException) -> None:
        assert scene.results == [LegResult.INTERNAL]
        assert scene.end.outcome is Outcome.FAILED_INTERNALLY
        assert scene.faults == [error]
        assert "secret" not in scene.end.detail
        assert {order.target.kind for order in scene.orders} == {kind}
        targets = scene.core.replicas if kind is TargetKind.REPLICA else scene.core.peers
        for state in targets:
            assert state.standing is Standing.AVAILABLE
            assert state.breaker.state is BreakerState.CLOSED
            assert state.distrusted_since_ns is None

    def test_while_it_connects(self, kind: TargetKind, error: Exception) -> None:
        scene = self.scene(kind)
        assert scene.play(error) is Outcome.FAILED_INTERNALLY
        self.assert_ours(scene, kind, error)
        assert scene.sink.head is None

    def test_before_the_first_token(self, kind: TargetKind, error: Exception) -> None:
        scene = self.scene(kind)
        assert scene.play(Reply((ROLE, error))) is Outcome.FAILED_INTERNALLY
        self.assert_ours(scene, kind, error)
        assert scene.sink.head is None

    def test_in_an_answer_in_one_piece(self, kind: TargetKind, error: Exception) -> None:
        scene = self.scene(kind)
        assert scene.play(Reply((b"{", error), headers=JSON)) is Outcome.FAILED_INTERNALLY
        self.assert_ours(scene, kind, error)

    def test_in_the_middle_of_a_stream(self, kind: TargetKind, error: Exception) -> None:
        scene = self.scene(kind)
        assert scene.play(Reply((ROLE + token("x"), error))) is Outcome.FAILED_INTERNALLY
        self.assert_ours(scene, kind, error)
        assert scene.sink.body == ROLE + token("x")

    @pytest.mark.parametrize("reply", [Reply(), Reply((GOOD_ANSWER,), headers=JSON), Reply((b"{}",), 400, JSON)])
    def test_on_its_way_to_the_client(self, kind: TargetKind, error: Exception, reply: Reply) -> None:
        scene = self.scene(kind)
        scene.sink.failure = error
        assert scene.play(reply) is Outcome.FAILED_INTERNALLY
        self.assert_ours(scene, kind, error)


class TestOtherErrorsOfOurs:
    @pytest.mark.parametrize("kind", TargetKind)
    def test_an_opener_may_know_that_it_is_this_gateway_that_lacks_something(self, kind: TargetKind) -> None:
        scene = TestErrorsOfOurs.scene(kind)
        assert scene.play(LegFailure(LegResult.INTERNAL, "no descriptor left")) is Outcome.FAILED_INTERNALLY
        assert scene.end.detail == "no descriptor left"
        assert scene.faults == []

    def test_one_once_the_client_has_it_all_changes_nothing(self) -> None:
        scene = Scene()
        error = KeyError("late")
        assert scene.play(Reply((*GOOD_STREAM, error))) is Outcome.COMPLETED
        assert scene.faults == [error]

    def test_one_of_the_sink_at_the_end_is_reported_and_ends_nothing_else(self) -> None:
        scene = Scene()
        scene.sink.failure_at_end = KeyError("no shape")
        assert scene.play(Reply()) is Outcome.COMPLETED
        assert scene.faults == [scene.sink.failure_at_end]
        assert [leg.result for record in scene.records if record is not None for leg in record.legs] == [
            LegResult.COMPLETED
        ]

    def test_one_in_the_middle_of_an_answer_is_not_resumed(self) -> None:
        scene = Scene()
        error = KeyError("choices")
        outcome = scene.play(Reply((ROLE, token("x"), error)), Reply(), hold=lambda _: True)
        assert outcome is Outcome.FAILED_INTERNALLY
        assert scene.opener.opened == 1


class TestOrders:
    def test_a_deadline_stops_the_leg_and_ends_the_request(self) -> None:
        scene = Scene()
        assert scene.play(Reply((ROLE, token("x"), SILENCE)), deadline_ns=10 * MS) is Outcome.EXPIRED_RUNNING
        assert scene.results == [LegResult.CANCELLED]
        assert scene.summary.duration_ns == 10 * MS

    def test_a_refused_forward_is_told_so_and_nothing_else(self) -> None:
        scene = Scene()
        scene.port.submit(events.PolicyApplied(policy(US, accept=rule(US))))
        scene.begin(forwarded=True)
        (refusal,) = scene.sink.refusals
        assert refusal.reason is RefusalReason.RESIDENCY_NOT_ACCEPTED
        assert not scene.sink.is_accepted
        assert (scene.sink.ends, scene.finished, scene.sink.breaches) == ([], [], [])
        (record,) = scene.refused
        assert record.refusal is refusal
        assert (scene.port.requests, scene.port.open_requests) == ({}, 0)
        assert scene.count(events.RequestAbandoned) == 0

    def test_the_record_of_a_refused_forward_takes_no_other_s_place(self) -> None:
        """A request of the same id may be over and not reported yet."""
        scene = Scene()
        scene.port.submit(events.PolicyApplied(policy(US, accept=rule(US))))
        unreported = RequestRecord(events.RequestArrived(profile("r1"), 10**18), policy(US), 0)
        scene.port.keep(unreported)
        scene.begin(forwarded=True)
        assert len(scene.sink.refusals) == 1
        assert scene.port.requests == {RequestId("r1"): unreported}

    def test_the_origin_of_a_refused_forward_may_leave_without_a_word(self) -> None:
        scene = Scene()
        scene.port.submit(events.PolicyApplied(policy(US, accept=rule(US))))
        scene.leave(scene.begin(forwarded=True))
        assert scene.count(events.RequestAbandoned) == 0

    def test_an_accepted_forward_says_so_first(self) -> None:
        scene = Scene()
        assert scene.play(Reply(), forwarded=True) is Outcome.COMPLETED
        assert scene.sink.is_accepted

    def test_an_id_that_runs_here_already_is_refused(self) -> None:
        scene = Scene()
        first = scene.begin(Reply((ROLE, SILENCE, *GOOD_STREAM[1:])))
        known = dict(scene.port.requests)
        twin = Scene()
        double = ProxiedRequest(scene.context, first._arrival, first._answer.outbound, twin.sink)
        double.begin()
        (refusal,) = twin.sink.refusals
        assert refusal.reason is RefusalReason.DUPLICATE
        twin.port.give(double.client_left)
        assert (scene.refused, scene.port.requests, scene.port.open_requests) == ([], known, 1)
        scene.leg.go_on()
        scene.finish(first)
        scene.check()

    def test_a_forward_that_comes_again_together_with_its_cancellation_is_no_duplicate(self) -> None:
        """An origin takes a forward back while this gateway is silent, and may find no other target after all."""
        scene = Scene()
        first = scene.begin(Reply((ROLE, SILENCE)), forwarded=True)
        left, scene.sink = scene.sink, RecordingSink()
        again = scene.request(Reply(), forwarded=True)
        first.client_left()
        again.begin()
        scene.finish(again)
        assert (scene.sink.refusals, scene.end.outcome) == ([], Outcome.COMPLETED)
        assert [each.outcome for each in left.ends] == [Outcome.ABANDONED]
        assert scene.results == [LegResult.CANCELLED, LegResult.COMPLETED]

    def test_it_hands_over_the_record_that_the_core_has_kept(self) -> None:
        scene = Scene()
        request = scene.request(Reply())
        request.begin()
        known = scene.port.requests[RequestId("r1")]
        scene.finish(request)
        scene.check()
        (record,) = scene.records
        assert record is known
        assert record.end is scene.end
        assert [leg.result for leg in record.legs] == [LegResult.COMPLETED]

    def test_a_rejected_request_has_its_record_too(self) -> None:
        scene = Scene()
        scene.port.submit(events.DrainRequested())
        assert scene.play() is Outcome.REJECTED_DRAINING
        (record,) = scene.records
        assert record is not None
        assert record.end is scene.end

    def test_a_request_after_a_crash_of_the_core_has_no_record(self) -> None:
        scene = Scene()
        scene.play(Reply())
        scene.port.crash()
        scene.sink = RecordingSink()
        scene.begin()
        assert scene.end.outcome is Outcome.FAILED_BEFORE_FIRST_BYTE
        assert scene.records[1] is None

    def test_a_rejected_request_ends_without_a_leg(self) -> None:
        scene = Scene()
        scene.port.submit(events.AssignmentApplied(2, (replica_spec("a", models=()),), ()))
        assert scene.play() is Outcome.REJECTED_UNKNOWN_MODEL
        assert scene.sink.head is None
        assert MODEL in scene.end.detail

    @pytest.mark.parametrize("script", [SILENCE, Reply((ROLE, SILENCE)), Reply((ROLE, token("x"), SILENCE))])
    def test_a_crash_of_the_core_ends_the_request(self, script: Script) -> None:
        scene = Scene()
        scene.begin(script)
        scene.port.crash()
        assert scene.leg.stops == scene.leg.terminals == 1
        assert scene.end.outcome is Outcome.FAILED_BEFORE_FIRST_BYTE
        assert (scene.sink.breaches, scene.port.timers, scene.port.open_requests) == ([], [], 0)

    def test_a_stop_for_an_earlier_attempt_changes_nothing(self) -> None:
        scene = Scene(attempts=AttemptConfig(first_token_deadline_ns=10 * MS))
        request = scene.begin(Reply((ROLE, SILENCE)), Reply((ROLE, SILENCE, *GOOD_STREAM[1:])))
        scene.wait(0.01)
        scene.play_on(request)
        (stop,) = [effect for effect in scene.port.effects if isinstance(effect, StopLeg)]
        scene.port.give(lambda: request.on_effect(stop))
        assert scene.results == [LegResult.CANCELLED]
        scene.leg.go_on()
        scene.finish(request)
        scene.check()
        assert scene.end.outcome is Outcome.COMPLETED

    def test_a_leg_may_be_ordered_and_stopped_in_one_step(self) -> None:
        """A leg is opened by its order at once, so that a stop finds it open."""
        scene = Scene()
        request = scene.begin(SILENCE)
        scene.leave(request)
        scene.check()
        assert scene.results == [LegResult.CANCELLED]
