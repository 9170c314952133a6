from __future__ import annotations

import asyncio
import errno
from dataclasses import replace

import grpc.aio
import pytest

from gateway.core import events
from gateway.core.features.stored_responses.key import stored_response_key
from gateway.core.kernel.attempts import BreakerState
from gateway.core.kernel.config import AttemptConfig
from gateway.core.kernel.description import gauges_of
from gateway.core.kernel.effects import EndRequest, RefuseForward
from gateway.core.vocabulary import (
    LegResult,
    Outcome,
    RefusalReason,
    RequestId,
    Standing,
    TargetKind,
)
from gateway.request.legs import LegFailure, SinkGone
from gateway.request.owner import RequestOwner
from gateway.request.relay import RelaySettings
from tests.fakes.engine import (
    DONE,
    GOOD_ANSWER,
    GOOD_MESSAGE_STREAM,
    GOOD_RESPONSE,
    GOOD_RESPONSE_STREAM,
    GOOD_STREAM,
    ROLE,
    STOP,
    chat_chunk,
    error_event,
    response_created,
    token,
)
from tests.support.core import MODEL, TENANT, US, policy, profile, replica_spec, rule
from tests.support.owning import (
    EVENT_STREAM,
    FAILED,
    GOOD,
    JSON,
    MESSAGE_OVERLOADED,
    RESPONSE_LIMITED,
    Piece,
    Reply,
    Scene,
)


class TestWatching:
    async def test_the_engine_is_asked_before_anybody_counts_the_request(self) -> None:
        scene = Scene()
        await scene.play(Reply())
        assert scene.opened_at_arrival == 1

    async def test_whoever_is_told_of_the_end_has_seen_all_that_came_before(self) -> None:
        scene = Scene()
        await scene.play(Reply())
        assert scene.seen_at_end == scene.events
        assert isinstance(scene.seen_at_end[-1], events.LegEnded)

    async def test_so_has_it_of_a_request_that_is_turned_away_at_once(self) -> None:
        scene = Scene()
        scene.driver.submit(events.DrainRequested())
        assert await scene.play() is Outcome.REJECTED_DRAINING
        assert [type(event) for event in scene.seen_at_end[-2:]] == [events.DrainRequested, events.RequestArrived]


class TestWhatWasDelivered:
    """The engine's behaviour after the last event has no effect on the client."""

    @pytest.mark.parametrize("pieces", [GOOD_STREAM, GOOD_RESPONSE_STREAM, GOOD_MESSAGE_STREAM, (GOOD,)])
    @pytest.mark.parametrize("forwarded", [False, True])
    async def test_a_client_that_leaves_behind_the_last_event_has_its_answer(
        self, pieces: tuple[bytes, ...], forwarded: bool
    ) -> None:
        scene = Scene()
        scene.sink.drain_s = 0
        end = await leave_behind(scene, pieces, forwarded=forwarded)
        assert end.outcome is Outcome.COMPLETED
        assert scene.sink.body == b"".join(pieces)
        (ended,) = scene.attempts_ended
        assert (ended.result, ended.prompt_tokens, ended.output_tokens) == (LegResult.COMPLETED, 22, 6)
        summary = scene.finished[0][2]
        assert summary.attempts[0].endswith(": completed")
        assert (summary.prompt_tokens, summary.output_tokens) == (22, 6)

    async def test_one_that_leaves_before_has_not(self) -> None:
        scene = Scene()
        assert (await leave_behind(scene, GOOD_STREAM[:-1])).outcome is Outcome.ABANDONED
        assert scene.results == [LegResult.CANCELLED]

    async def test_the_attempt_is_over_with_the_last_event_whatever_the_engine_still_does(self) -> None:
        scene = Scene()
        never = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(scene.owner(Reply((*GOOD_STREAM, never))).run())
            while b"".join(GOOD_STREAM) != scene.sink.body or not scene.sink.has_drained:
                await scene.sink.has_written.wait()
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            scene.driver.tell_observers()
            assert scene.results == [LegResult.COMPLETED]
            assert scene.opener.closed == 0
            assert gauges_of(scene.core, scene.clock.now_ns()).attempts == 0
            never.set()
        assert isinstance(running.result(), EndRequest)
        scene.check()


async def leave_behind(scene: Scene, pieces: tuple[bytes, ...], *, forwarded: bool = False) -> EndRequest:
    """Cancel the owner once the client has all of these pieces; the engine never ends its response."""
    owner = scene.owner(Reply((*pieces, asyncio.Event())), forwarded=forwarded)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(owner.run())
        while scene.sink.body != b"".join(pieces) or not scene.sink.has_drained:
            await scene.sink.has_written.wait()
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        running.cancel()
    scene.check()
    return scene.finished[0][1]


class TestThePrompt:
    """Prompt tokens of a request whose client has left: they count once an engine has the request."""

    async def test_an_engine_that_has_it_when_the_client_leaves_has_taken_it(self) -> None:
        scene = Scene()
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(scene.owner(Reply((asyncio.Event(),))).run())
            await scene.opener.has_opened.wait()
            running.cancel()
        assert scene.finished[0][2].prompt_taken
        scene.check()

    async def test_nobody_has_it_while_it_waits(self) -> None:
        scene = Scene()
        scene.probe(waiting=1)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(scene.owner().run())
            await scene.has_arrived.wait()
            running.cancel()
        assert not scene.finished[0][2].prompt_taken
        scene.check()

    async def test_looking_at_a_stored_answer_or_counting_generates_nothing(self) -> None:
        assert Scene().owner().summary.generates
        assert not Scene().owner(is_control=True).summary.generates
        scene = Scene()
        outbound = replace(scene.owner()._relay.outbound, path="/v1/messages/count_tokens")
        arrival = scene.owner()._arrival
        assert not RequestOwner(scene.owner()._context, arrival, outbound, scene.sink).summary.generates

    async def test_an_engine_that_still_works_on_it_at_the_deadline_has_taken_it(self) -> None:
        scene = Scene()
        owner = scene.owner(Reply((asyncio.Event(),)))
        assert isinstance(owner._arrival, events.RequestArrived)
        owner._arrival = replace(owner._arrival, deadline_ns=scene.clock.now_ns() + 10_000_000)
        end = await owner.run()
        assert isinstance(end, EndRequest)
        assert end.outcome is Outcome.EXPIRED_RUNNING
        assert scene.finished[0][2].prompt_taken
        scene.check()

    async def test_one_that_brought_no_first_token_in_time_has_failed(self) -> None:
        scene = Scene(attempts=AttemptConfig(first_token_deadline_ns=10_000_000, attempts_max=1))
        assert await scene.play(Reply((ROLE, asyncio.Event()))) is Outcome.FAILED_BEFORE_FIRST_BYTE
        assert not scene.finished[0][2].prompt_taken

    @pytest.mark.parametrize("reply", [FAILED, Reply((b"full",), 503, JSON), Reply((b"{}",), 400, JSON)])
    async def test_one_that_failed_or_turned_it_down_has_not_taken_it(self, reply: Reply | LegFailure) -> None:
        scene = Scene(attempts=AttemptConfig(attempts_max=1, refusals_max=0))
        await scene.play(reply)
        assert not scene.finished[0][2].prompt_taken


class TestEventStreams:
    async def test_the_stream_is_relayed_byte_for_byte_with_one_event_of_each_kind(self) -> None:
        scene = Scene()
        assert await scene.play(Reply()) is Outcome.COMPLETED
        assert scene.sink.body == GOOD
        assert scene.sink.head is not None
        assert scene.sink.head.headers == EVENT_STREAM
        assert scene.finished[0][2].ran_at == scene.sink.head.ran_at
        assert [scene.count(kind) for kind in (events.FirstToken, events.LegEnded)] == [1, 1]
        (ended,) = scene.attempts_ended
        assert (ended.prompt_tokens, ended.output_tokens) == (22, 6)

    @pytest.mark.parametrize("size", [1, 7, 100])
    async def test_pieces_of_any_size_come_out_the_same(self, size: int) -> None:
        scene = Scene()
        cut = tuple(GOOD[at : at + size] for at in range(0, len(GOOD), size))
        assert await scene.play(Reply(cut)) is Outcome.COMPLETED
        assert scene.sink.body == GOOD
        assert scene.count(events.FirstToken) == 1

    async def test_a_stream_that_falls_silent_has_failed(self) -> None:
        scene = Scene(RelaySettings(engine_stall_s=0.02))
        never = asyncio.Event()
        assert await scene.play(Reply((ROLE, *GOOD_STREAM[1:3], never))) is Outcome.FAILED_MIDSTREAM
        (ended,) = scene.attempts_ended
        assert (ended.result, ended.detail) == (LegResult.FAILED, "it fell silent")
        assert scene.opener.closed == 1

    async def test_an_engine_is_not_to_blame_for_a_client_that_reads_slowly(self) -> None:
        scene = Scene(RelaySettings(engine_stall_s=0.02))
        scene.sink.drain_s = 0.1
        assert await scene.play(Reply(tuple(GOOD_STREAM))) is Outcome.COMPLETED
        assert scene.sink.body == b"".join(GOOD_STREAM)

    async def test_the_end_is_hurried_only_once_the_reader_has_it(self) -> None:
        scene = Scene(RelaySettings(trailer_grace_s=0.02))
        scene.sink.drain_s = 0.1
        assert await scene.play(Reply(tuple(GOOD_STREAM))) is Outcome.COMPLETED
        assert scene.sink.body == b"".join(GOOD_STREAM)

    async def test_a_stream_s_length_is_not_promised_since_its_end_may_be_ours(self) -> None:
        scene = Scene()
        assert await scene.play(Reply(headers=(*EVENT_STREAM, ("Content-Length", "999")))) is Outcome.COMPLETED
        assert scene.sink.head is not None
        assert scene.sink.head.headers == EVENT_STREAM

    async def test_nothing_is_sent_before_the_first_token(self) -> None:
        scene = Scene()
        gate = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(scene.owner(Reply((ROLE, gate, *GOOD_STREAM[1:]))).run())
            await scene.opener.has_opened.wait()
            for _ in range(10):
                await asyncio.sleep(0)
            assert scene.sink.head is None
            assert scene.count(events.FirstToken) == 0
            gate.set()
        assert isinstance(running.result(), EndRequest)
        assert scene.sink.body == ROLE + b"".join(GOOD_STREAM[1:])

    @pytest.mark.parametrize(
        ("bad", "result"),
        [
            (FAILED, LegResult.FAILED),
            (LegFailure(LegResult.BUSY, "full"), LegResult.BUSY),
            (Reply((b"oops",), 500, JSON), LegResult.FAILED),
            (Reply((), 502, ()), LegResult.FAILED),
            (Reply((b"full",), 503, JSON), LegResult.BUSY),
            (Reply((b"full",), 429, JSON), LegResult.BUSY),
            (Reply((b"slow",), 408, JSON), LegResult.FAILED),
            (Reply((b'{"error":"Unauthorized"}',), 401, JSON), LegResult.FAILED),
            (Reply((b"see there",), 307, ()), LegResult.FAILED),
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
    async def test_what_fails_before_the_first_byte_is_tried_elsewhere(
        self, bad: Reply | LegFailure, result: LegResult
    ) -> None:
        scene = Scene()
        assert await scene.play(bad, Reply()) is Outcome.COMPLETED
        assert scene.results == [result, LegResult.COMPLETED]
        assert scene.sink.body == GOOD
        assert len(scene.sink.ends) == 1
        summary = scene.finished[0][2]
        assert [attempt.split(": ")[1] for attempt in summary.attempts] == [result, "completed"]
        assert {attempt.split(": ")[0] for attempt in summary.attempts} == {"replica:a", "replica:b"}

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
    async def test_after_the_first_byte_there_is_no_second_try(self, pieces: tuple[Piece, ...], relayed: bytes) -> None:
        scene = Scene()
        assert await scene.play(Reply(pieces), Reply()) is Outcome.FAILED_MIDSTREAM
        assert scene.sink.body == relayed
        assert scene.results == [LegResult.FAILED]
        assert scene.finished[0][2].started

    async def test_both_replicas_failing_is_an_error_before_the_first_byte(self) -> None:
        scene = Scene()
        assert await scene.play(FAILED, FAILED) is Outcome.FAILED_BEFORE_FIRST_BYTE
        assert scene.sink.head is None

    async def test_a_stream_may_end_with_a_finish_reason_alone(self) -> None:
        scene = Scene()
        assert await scene.play(Reply((ROLE, token("x"), STOP))) is Outcome.COMPLETED

    async def test_a_connection_that_stays_open_after_done_is_not_waited_for(self) -> None:
        scene = Scene(RelaySettings(trailer_grace_s=0.0))
        assert await scene.play(Reply((*GOOD_STREAM, asyncio.Event()))) is Outcome.COMPLETED
        assert scene.results == [LegResult.COMPLETED]
        assert scene.attempts_ended[0].output_tokens == 6

    async def test_a_fault_after_done_comes_too_late_to_matter(self) -> None:
        scene = Scene()
        assert await scene.play(Reply((*GOOD_STREAM, FAILED))) is Outcome.COMPLETED

    async def test_a_beginning_too_large_to_hold_goes_out_without_a_token(self) -> None:
        scene = Scene(RelaySettings(held_bytes_max=100))
        comments = (b": keep-alive\n\n",) * 10
        assert await scene.play(Reply((*comments, *GOOD_STREAM))) is Outcome.COMPLETED
        assert scene.sink.body == b"".join(comments) + GOOD


class TestWholeAnswers:
    async def test_the_answer_goes_out_with_its_length_and_its_usage_is_read(self) -> None:
        scene = Scene()
        assert await scene.play(Reply((GOOD_ANSWER[:30], GOOD_ANSWER[30:]), 200, JSON)) is Outcome.COMPLETED
        assert scene.sink.body == GOOD_ANSWER
        assert scene.sink.head is not None
        assert scene.sink.head.headers == (*JSON, ("content-length", str(len(GOOD_ANSWER))))
        assert scene.count(events.FirstToken) == 0, "its end says it all"
        summary = scene.finished[0][2]
        assert (summary.prompt_tokens, summary.output_tokens, summary.cached_tokens) == (22, 1, 16)
        assert not summary.is_event_stream

    async def test_one_too_large_to_hold_is_relayed_as_it_comes(self) -> None:
        scene = Scene(RelaySettings(held_bytes_max=10))
        assert await scene.play(Reply((GOOD_ANSWER[:30], GOOD_ANSWER[30:]), 200, JSON)) is Outcome.COMPLETED
        assert scene.sink.body == GOOD_ANSWER
        assert scene.sink.head is not None
        assert scene.sink.head.headers == JSON
        summary = scene.finished[0][2]
        assert (summary.prompt_tokens, summary.output_tokens, summary.cached_tokens) == (22, 1, 16)
        assert not summary.answer_bytes, "the engine has counted"

    async def test_nobody_counted_one_too_large_to_hold_whose_end_tells_nothing(self) -> None:
        scene = Scene(RelaySettings(held_bytes_max=10))
        assert await scene.play(Reply((b'{"data": [0.25, 0.125', b", 0.5]}"), 200, JSON)) is Outcome.COMPLETED
        summary = scene.finished[0][2]
        assert summary.output_tokens is None
        assert summary.answer_bytes

    @pytest.mark.parametrize("status", [400, 404, 413, 422])
    async def test_the_client_s_own_errors_are_relayed_and_never_tried_again(self, status: int) -> None:
        scene = Scene()
        body = b'{"error":{"message":"too long","code":400}}'
        assert await scene.play(Reply((body[:9], body[9:]), status, JSON)) is Outcome.CLIENT_ERROR
        assert scene.sink.body == body
        assert scene.sink.head is not None
        assert scene.sink.head.status == status
        assert scene.results == [LegResult.CLIENT_ERROR]
        assert [scene.count(kind) for kind in (events.LegAccepted, events.FirstToken)] == [0, 0]

    async def test_a_stream_that_begins_with_a_client_error_becomes_that_error(self) -> None:
        scene = Scene()
        assert await scene.play(Reply((error_event(400, "too long"), DONE))) is Outcome.CLIENT_ERROR
        assert scene.sink.head is not None
        assert scene.sink.head.status == 400
        assert scene.sink.body == error_event(400, "too long")[6:-2]
        assert dict(scene.sink.head.headers)["content-type"] == "application/json"
        assert not scene.finished[0][2].is_event_stream

    async def test_an_error_with_an_endless_body_is_a_failure(self) -> None:
        scene = Scene(RelaySettings(held_bytes_max=10))
        assert await scene.play(Reply((b"x" * 20,), 400, JSON), Reply()) is Outcome.COMPLETED
        assert scene.results == [LegResult.FAILED, LegResult.COMPLETED]

    async def test_an_attempt_is_over_before_its_answer_waits_for_a_slow_reader(self) -> None:
        """A deadline in between would else have the answer asked for, and sent, a second time."""
        scene = Scene()
        assert await scene.play(Reply((GOOD_ANSWER,), 200, JSON)) is Outcome.COMPLETED
        assert (scene.sink.body, scene.sink.drains, scene.opener.opened) == (GOOD_ANSWER, 0, 1)

    async def test_where_sending_may_wait_the_core_hears_of_the_answer_first(self) -> None:
        scene = Scene()
        scene.sink.is_immediate = False
        assert await scene.play(Reply((GOOD_ANSWER,), 200, JSON)) is Outcome.COMPLETED
        assert scene.count(events.FirstToken) == 1


class TestStoredResponses:
    @pytest.mark.parametrize("forwarded", [False, True])
    @pytest.mark.parametrize("reply", [Reply(GOOD_RESPONSE_STREAM), Reply((GOOD_RESPONSE,), headers=JSON)])
    async def test_the_core_is_told_before_the_client_can_know(self, reply: Reply, forwarded: bool) -> None:
        scene = Scene()
        assert await scene.play(reply, stores_response=True, forwarded=forwarded) is Outcome.COMPLETED
        kinds = [type(event) for event in scene.events]
        told = events.FirstToken if events.FirstToken in kinds else events.LegEnded
        assert kinds.index(events.ResponseStored) < kinds.index(told)
        (stored,) = [event for event in scene.events if isinstance(event, events.ResponseStored)]
        assert stored == events.ResponseStored(RequestId("r1"), 1, 1, stored_response_key(TENANT, "resp_1"))

    async def test_an_answer_too_large_to_hold_is_stored_all_the_same(self) -> None:
        scene = Scene(RelaySettings(held_bytes_max=20))
        assert await scene.play(Reply((GOOD_RESPONSE,), headers=JSON), stores_response=True) is Outcome.COMPLETED
        assert scene.count(events.ResponseStored) == 1

    @pytest.mark.parametrize("reply", [Reply(GOOD_RESPONSE_STREAM), Reply((GOOD_RESPONSE,), headers=JSON)])
    async def test_one_that_is_not_kept_is_not_told_of(self, reply: Reply) -> None:
        scene = Scene()
        assert await scene.play(reply) is Outcome.COMPLETED
        assert scene.count(events.ResponseStored) == 0

    async def test_one_that_fails_before_its_first_token_is_had_elsewhere_under_another_id(self) -> None:
        scene = Scene()
        broken = Reply((response_created("resp_0"), FAILED))
        assert await scene.play(broken, Reply(GOOD_RESPONSE_STREAM), stores_response=True) is Outcome.COMPLETED
        assert scene.sink.body == b"".join(GOOD_RESPONSE_STREAM)
        keys = [event.key for event in scene.events if isinstance(event, events.ResponseStored)]
        assert keys == [stored_response_key(TENANT, "resp_1")]

    async def test_what_a_stored_response_says_of_itself_is_no_fault_of_now(self) -> None:
        failed = b'{"object":"response","status":"failed","error":{"code":"server_error"}}'
        scene = Scene()
        assert await scene.play(Reply((failed,), headers=JSON), is_control=True) is Outcome.COMPLETED
        assert scene.sink.body == failed


class TestOtherStreams:
    async def test_a_message_is_relayed_and_counted(self) -> None:
        scene = Scene()
        assert await scene.play(Reply(GOOD_MESSAGE_STREAM)) is Outcome.COMPLETED
        assert scene.sink.body == b"".join(GOOD_MESSAGE_STREAM)
        (ended,) = scene.attempts_ended
        assert (ended.prompt_tokens, ended.output_tokens) == (22, 6)

    async def test_a_message_that_stops_in_the_middle_has_failed(self) -> None:
        scene = Scene()
        assert await scene.play(Reply(GOOD_MESSAGE_STREAM[:3])) is Outcome.FAILED_MIDSTREAM

    async def test_a_ping_is_no_token(self) -> None:
        scene = Scene()
        begun = Reply((*GOOD_MESSAGE_STREAM[:2], FAILED))
        assert await scene.play(begun, Reply(GOOD_MESSAGE_STREAM)) is Outcome.COMPLETED
        assert scene.sink.body == b"".join(GOOD_MESSAGE_STREAM)

    async def test_numbers_in_bytes_are_not_looked_at(self) -> None:
        scene = Scene()
        opaque = (("content-type", "application/octet-stream"),)
        assert await scene.play(Reply((b"\x00\x01",), headers=opaque)) is Outcome.COMPLETED
        assert scene.sink.body == b"\x00\x01"


class TestLeaving:
    async def leave(self, scene: Scene, *replies: Reply | LegFailure | asyncio.Event, once: asyncio.Event) -> None:
        task = asyncio.get_running_loop().create_task(scene.owner(*replies).run())
        await once.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        scene.check()
        assert scene.finished[0][1].outcome is Outcome.ABANDONED
        assert scene.sink.ends == []

    async def test_while_connecting(self) -> None:
        scene = Scene()
        await self.leave(scene, asyncio.Event(), once=scene.opener.has_opened)
        assert scene.results == [LegResult.CANCELLED]

    async def test_before_the_first_token(self) -> None:
        scene = Scene()
        await self.leave(scene, Reply((ROLE, asyncio.Event())), once=scene.opener.has_opened)
        assert scene.results == [LegResult.CANCELLED]

    async def test_in_the_middle_of_the_stream(self) -> None:
        scene = Scene()
        await self.leave(scene, Reply((ROLE, token("x"), asyncio.Event())), once=scene.sink.has_written)
        assert scene.results == [LegResult.CANCELLED]

    async def test_while_waiting_in_the_queue(self) -> None:
        scene = Scene()
        scene.probe(waiting=3)
        task = asyncio.get_running_loop().create_task(scene.owner().run())
        await scene.has_arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        scene.check()
        assert scene.count(events.RequestAbandoned) == 1
        assert scene.opener.opened == 0

    async def test_a_sink_that_breaks_is_a_client_that_left(self) -> None:
        scene = Scene()
        scene.sink.failure = SinkGone("gone")
        with pytest.raises(ConnectionResetError):
            await scene.owner(Reply()).run()
        scene.check()
        assert scene.results == [LegResult.CANCELLED]
        assert scene.finished[0][1].outcome is Outcome.ABANDONED


OURS = [
    UnicodeEncodeError("latin-1", "secret \u20ac", 7, 8, "ordinal not in range"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    ValueError("a header would break out of its line"),
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
    asyncio.CancelledError("a future was cancelled, and not this task"),
    asyncio.InvalidStateError(),
    grpc.aio.UsageError("the call is over"),
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
        assert [end.outcome for end in scene.sink.ends] == [Outcome.FAILED_INTERNALLY]
        assert scene.faults == [error]
        assert "secret" not in scene.sink.ends[0].detail
        targets = scene.core.replicas if kind is TargetKind.REPLICA else scene.core.peers
        for state in targets:
            assert state.standing is Standing.AVAILABLE
            assert state.breaker.state is BreakerState.CLOSED
            assert state.distrusted_since_ns is None

    async def test_while_it_connects(self, kind: TargetKind, error: BaseException) -> None:
        scene = self.scene(kind)
        assert await scene.play(error) is Outcome.FAILED_INTERNALLY
        self.assert_ours(scene, kind, error)
        assert scene.sink.head is None

    async def test_before_the_first_token(self, kind: TargetKind, error: BaseException) -> None:
        scene = self.scene(kind)
        assert await scene.play(Reply((ROLE, error))) is Outcome.FAILED_INTERNALLY
        self.assert_ours(scene, kind, error)
        assert scene.sink.head is None

    async def test_in_an_answer_in_one_piece(self, kind: TargetKind, error: BaseException) -> None:
        scene = self.scene(kind)
        assert await scene.play(Reply((b"{", error), headers=JSON)) is Outcome.FAILED_INTERNALLY
        self.assert_ours(scene, kind, error)

    async def test_in_the_middle_of_a_stream(self, kind: TargetKind, error: BaseException) -> None:
        scene = self.scene(kind)
        assert await scene.play(Reply((ROLE + token("x"), error))) is Outcome.FAILED_INTERNALLY
        self.assert_ours(scene, kind, error)
        assert scene.sink.body == ROLE + token("x")

    async def test_on_its_way_to_the_client(self, kind: TargetKind, error: BaseException) -> None:
        scene = self.scene(kind)
        scene.sink.failure = error
        assert await scene.play(Reply()) is Outcome.FAILED_INTERNALLY
        self.assert_ours(scene, kind, error)


@pytest.mark.parametrize("kind", TargetKind)
async def test_an_opener_may_know_that_it_is_this_gateway_that_lacks_something(kind: TargetKind) -> None:
    scene = TestErrorsOfOurs.scene(kind)
    assert await scene.play(LegFailure(LegResult.INTERNAL, "no descriptor left")) is Outcome.FAILED_INTERNALLY
    assert scene.sink.ends[0].detail == "no descriptor left"
    assert scene.faults == []


async def test_our_error_once_the_client_has_it_all_changes_nothing() -> None:
    scene = Scene()
    error = KeyError("late")
    assert await scene.play(Reply((*GOOD_STREAM, error))) is Outcome.COMPLETED
    assert scene.faults == [error]


class TestOrders:
    async def test_a_deadline_stops_the_leg_and_ends_the_request(self) -> None:
        scene = Scene()
        owner = scene.owner(Reply((ROLE, token("x"), asyncio.Event())))
        assert isinstance(owner._arrival, events.RequestArrived)
        owner._arrival = replace(owner._arrival, deadline_ns=scene.clock.now_ns() + 10_000_000)
        end = await owner.run()
        assert isinstance(end, EndRequest)
        assert end.outcome is Outcome.EXPIRED_RUNNING
        scene.check()
        assert scene.results == [LegResult.CANCELLED]
        assert scene.sink.ends == [end]

    async def test_a_leg_that_is_stopped_makes_room_for_another(self) -> None:
        scene = Scene(attempts=AttemptConfig(first_token_deadline_ns=10_000_000))
        assert await scene.play(Reply((ROLE, asyncio.Event())), Reply()) is Outcome.COMPLETED
        assert scene.results == [LegResult.CANCELLED, LegResult.COMPLETED]
        assert scene.sink.body == GOOD

    async def test_a_refused_forward_leaves_the_sink_alone(self) -> None:
        scene = Scene()
        scene.driver.submit(events.PolicyApplied(policy(US, accept=rule(US))))
        refusal = await scene.owner(forwarded=True).run()
        assert isinstance(refusal, RefuseForward)
        assert refusal.reason is RefusalReason.RESIDENCY_NOT_ACCEPTED
        assert not scene.sink.is_accepted
        assert scene.sink.ends == []
        assert scene.finished == []
        (record,) = scene.refused
        assert record.refusal is refusal
        assert scene.driver.requests == {}
        assert scene.count(events.RequestAbandoned) == 0
        scene.driver.close()

    async def test_an_accepted_forward_says_so_first(self) -> None:
        scene = Scene()
        assert await scene.play(Reply(), forwarded=True) is Outcome.COMPLETED
        assert scene.sink.is_accepted

    async def test_an_id_that_runs_here_already_is_refused(self) -> None:
        scene = Scene()
        with scene.driver.open_mailbox(profile("r1").request_id):
            refusal = await scene.owner(forwarded=True).run()
        assert isinstance(refusal, RefuseForward)
        assert refusal.reason is RefusalReason.DUPLICATE
        scene.driver.close()

    async def test_it_hands_over_the_record_that_the_core_has_kept(self) -> None:
        scene = Scene()
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(scene.run(scene.owner(Reply())))
            await scene.has_arrived.wait()
            known = scene.driver.requests[RequestId("r1")]
        end = running.result()
        (record,) = scene.records
        assert record is known
        assert record.end is end
        assert [leg.result for leg in record.legs] == [LegResult.COMPLETED]
        assert scene.driver.requests == {}
        scene.driver.close()

    async def test_a_rejected_request_has_its_record_too(self) -> None:
        scene = Scene()
        scene.driver.submit(events.DrainRequested())
        assert await scene.play() is Outcome.REJECTED_DRAINING
        (record,) = scene.records
        assert record is not None
        assert record.end is scene.finished[0][1]

    async def test_a_request_after_a_crash_of_the_core_has_no_record(self) -> None:
        scene = Scene()
        await scene.play(Reply())
        scene.driver.fail(RuntimeError("boom"))
        assert isinstance(await scene.owner().run(), EndRequest)
        assert scene.records[1] is None
        scene.driver.close()

    async def test_a_rejected_request_ends_without_a_leg(self) -> None:
        scene = Scene()
        scene.driver.submit(events.AssignmentApplied(2, (replica_spec("a", models=()),), ()))
        assert await scene.play() is Outcome.REJECTED_UNKNOWN_MODEL
        assert scene.sink.head is None
        assert MODEL in scene.sink.ends[0].detail

    async def test_a_crash_of_the_core_ends_the_stream(self) -> None:
        scene = Scene()
        owner = scene.owner(Reply((ROLE, token("x"), asyncio.Event())))
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(owner.run())
            await scene.sink.has_written.wait()
            scene.driver.submit("no event at all")  # type: ignore[arg-type]
        assert scene.driver.failed.is_set()
        assert isinstance(running.result(), EndRequest)
        assert scene.opener.opened == scene.opener.closed == 1
