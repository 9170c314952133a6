"""Bodies of answers as they arrive: event streams, answers in one piece, and errors."""

from __future__ import annotations

import pytest

from gateway.core.kernel import events
from gateway.core.vocabulary import LegResult, Outcome, ReplicaId
from gateway.request.answer import AnswerSettings
from gateway.request.answer_bodies import result_of, with_length, without_length
from gateway.request.legs import LegHead, RanAt
from tests.fakes.engine import (
    DONE,
    GOOD_ANSWER,
    GOOD_MESSAGE_STREAM,
    GOOD_STREAM,
    ROLE,
    STOP,
    error_event,
    token,
)
from tests.support.core import US
from tests.support.proxied import EVENT_STREAM, FAILED, GOOD, JSON, SILENCE, Reply, Scene, pieces_of


class TestEventStreams:
    def test_the_stream_is_relayed_byte_for_byte_with_one_event_of_each_kind(self) -> None:
        scene = Scene()
        assert scene.play(Reply()) is Outcome.COMPLETED
        assert scene.sink.body == GOOD
        assert scene.sink.head is not None
        assert scene.sink.head.headers == EVENT_STREAM
        assert scene.summary.ran_at == scene.sink.head.ran_at
        assert [scene.count(kind) for kind in (events.FirstToken, events.LegEnded)] == [1, 1]
        (ended,) = scene.legs_ended
        assert (ended.prompt_tokens, ended.output_tokens) == (22, 6)

    @pytest.mark.parametrize("size", [1, 7, 100])
    def test_pieces_of_any_size_come_out_the_same(self, size: int) -> None:
        scene = Scene()
        assert scene.play(Reply(pieces_of(GOOD, *range(0, len(GOOD), size)))) is Outcome.COMPLETED
        assert scene.sink.body == GOOD
        assert scene.count(events.FirstToken) == 1

    def test_a_streams_length_is_not_promised_since_its_end_may_be_ours(self) -> None:
        scene = Scene()
        assert scene.play(Reply(headers=(*EVENT_STREAM, ("Content-Length", "999")))) is Outcome.COMPLETED
        assert scene.sink.head is not None
        assert scene.sink.head.headers == EVENT_STREAM

    def test_nothing_is_sent_before_the_first_token(self) -> None:
        scene = Scene()
        request = scene.begin(Reply((ROLE, SILENCE, *GOOD_STREAM[1:])))
        assert scene.sink.head is None
        assert scene.count(events.FirstToken) == 0
        scene.leg.go_on()
        scene.finish(request)
        scene.check()
        assert scene.sink.body == ROLE + b"".join(GOOD_STREAM[1:])

    def test_the_core_counts_a_token_that_the_client_has_been_sent(self) -> None:
        scene = Scene()
        scene.begin(Reply((ROLE + token("a"), SILENCE)))
        assert scene.sink.body == ROLE + token("a")
        assert scene.count(events.FirstToken) == 1

    def test_the_time_to_first_token_is_noted(self) -> None:
        scene = Scene()
        request = scene.begin(Reply((ROLE, SILENCE, *GOOD_STREAM[1:])))
        scene.wait(0.25)
        scene.leg.go_on()
        scene.finish(request)
        assert (scene.summary.first_token_ns, scene.summary.duration_ns) == (250_000_000, 250_000_000)

    def test_a_stream_may_end_with_a_finish_reason_alone(self) -> None:
        scene = Scene()
        assert scene.play(Reply((ROLE, token("x"), STOP))) is Outcome.COMPLETED

    def test_a_beginning_too_large_to_hold_goes_out_without_a_token(self) -> None:
        scene = Scene(AnswerSettings(held_bytes_max=100))
        comments = (b": keep-alive\n\n",) * 10
        assert scene.play(Reply((*comments, *GOOD_STREAM))) is Outcome.COMPLETED
        assert scene.sink.body == b"".join(comments) + GOOD

    def test_a_stream_that_begins_with_a_client_error_becomes_that_error(self) -> None:
        scene = Scene()
        assert scene.play(Reply((error_event(400, "too long"), DONE))) is Outcome.CLIENT_ERROR
        assert scene.sink.head is not None
        assert scene.sink.head.status == 400
        assert scene.sink.body == error_event(400, "too long")[6:-2]
        assert dict(scene.sink.head.headers)["content-type"] == "application/json"
        assert not scene.summary.is_event_stream
        assert scene.leg.stops == 1, "nothing more of it matters"

    def test_a_message_is_relayed_and_counted(self) -> None:
        scene = Scene()
        assert scene.play(Reply(GOOD_MESSAGE_STREAM)) is Outcome.COMPLETED
        assert scene.sink.body == b"".join(GOOD_MESSAGE_STREAM)
        (ended,) = scene.legs_ended
        assert (ended.prompt_tokens, ended.output_tokens) == (22, 6)

    def test_a_message_that_stops_in_the_middle_has_failed(self) -> None:
        scene = Scene()
        assert scene.play(Reply(GOOD_MESSAGE_STREAM[:3])) is Outcome.FAILED_MIDSTREAM

    def test_a_ping_is_no_token(self) -> None:
        scene = Scene()
        begun = Reply((*GOOD_MESSAGE_STREAM[:2], FAILED))
        assert scene.play(begun, Reply(GOOD_MESSAGE_STREAM)) is Outcome.COMPLETED
        assert scene.sink.body == b"".join(GOOD_MESSAGE_STREAM)

    def test_a_stream_that_breaks_off_is_counted_by_its_events(self) -> None:
        scene = Scene()
        assert scene.play(Reply((ROLE, token("x"), token("y"), FAILED))) is Outcome.FAILED_MIDSTREAM
        assert (scene.summary.output_events, scene.summary.content_events) == (3, 2)
        assert scene.summary.output_tokens is None


class TestWholeAnswers:
    def test_the_answer_goes_out_with_its_length_and_its_usage_is_read(self) -> None:
        scene = Scene()
        assert scene.play(Reply((GOOD_ANSWER[:30], GOOD_ANSWER[30:]), 200, JSON)) is Outcome.COMPLETED
        assert scene.sink.body == GOOD_ANSWER
        assert scene.sink.head is not None
        assert scene.sink.head.headers == (*JSON, ("content-length", str(len(GOOD_ANSWER))))
        assert scene.count(events.FirstToken) == 0, "its end says it all"
        summary = scene.summary
        assert (summary.prompt_tokens, summary.output_tokens, summary.cached_tokens) == (22, 1, 16)
        assert not summary.is_event_stream

    def test_one_too_large_to_hold_is_relayed_as_it_comes(self) -> None:
        scene = Scene(AnswerSettings(held_bytes_max=10))
        request = scene.begin(Reply((GOOD_ANSWER[:30], SILENCE, GOOD_ANSWER[30:]), 200, JSON))
        assert scene.sink.body == GOOD_ANSWER[:30]
        assert scene.count(events.FirstToken) == 1
        scene.leg.go_on()
        scene.finish(request)
        scene.check()
        assert scene.sink.body == GOOD_ANSWER
        assert scene.sink.head is not None
        assert scene.sink.head.headers == JSON
        summary = scene.summary
        assert (summary.prompt_tokens, summary.output_tokens, summary.cached_tokens) == (22, 1, 16)
        assert not summary.answer_bytes, "the engine has counted"

    def test_one_too_large_to_hold_whose_end_tells_nothing_is_counted_by_its_bytes(self) -> None:
        scene = Scene(AnswerSettings(held_bytes_max=10))
        assert scene.play(Reply((b'{"data": [0.25, 0.125', b", 0.5]}"), 200, JSON)) is Outcome.COMPLETED
        assert scene.summary.output_tokens is None
        assert scene.summary.answer_bytes

    def test_one_too_large_to_hold_waits_for_its_reader(self) -> None:
        scene = Scene(AnswerSettings(held_bytes_max=10))
        scene.sink.is_narrow, scene.sink.reads_after_s = True, 1.0
        request = scene.begin(Reply((GOOD_ANSWER[:30], GOOD_ANSWER[30:50], GOOD_ANSWER[50:]), 200, JSON))
        assert (scene.leg.is_paused, scene.sink.body) == (True, GOOD_ANSWER[:30])
        scene.read(request)
        scene.play_on(request)
        assert (scene.leg.is_paused, scene.sink.body) == (True, GOOD_ANSWER[:50])
        scene.finish(request)
        scene.check()
        assert scene.sink.body == GOOD_ANSWER

    def test_numbers_in_bytes_are_not_looked_at(self) -> None:
        scene = Scene()
        opaque = (("content-type", "application/octet-stream"),)
        assert scene.play(Reply((b"\x00\x01",), headers=opaque)) is Outcome.COMPLETED
        assert scene.sink.body == b"\x00\x01"


class TestErrors:
    @pytest.mark.parametrize("status", [400, 404, 413, 422])
    def test_the_clients_own_errors_are_relayed_and_never_tried_again(self, status: int) -> None:
        scene = Scene()
        body = b'{"error":{"message":"too long","code":400}}'
        assert scene.play(Reply((body[:9], body[9:]), status, JSON)) is Outcome.CLIENT_ERROR
        assert scene.sink.body == body
        assert scene.sink.head is not None
        assert scene.sink.head.status == status
        assert scene.results == [LegResult.CLIENT_ERROR]
        assert [scene.count(kind) for kind in (events.LegAccepted, events.FirstToken)] == [0, 0]

    def test_an_error_with_an_endless_body_is_a_failure(self) -> None:
        scene = Scene(AnswerSettings(held_bytes_max=10))
        assert scene.play(Reply((b"x" * 20,), 400, JSON), Reply()) is Outcome.COMPLETED
        assert scene.results == [LegResult.FAILED, LegResult.COMPLETED]

    def test_an_error_is_held_until_it_is_complete(self) -> None:
        scene = Scene()
        scene.begin(Reply((b'{"error":', SILENCE, b"{}}"), 400, JSON))
        assert scene.sink.head is None

    @pytest.mark.parametrize(
        ("status", "result"),
        [
            (400, LegResult.CLIENT_ERROR),
            (401, LegResult.FAILED),
            (404, LegResult.CLIENT_ERROR),
            (408, LegResult.FAILED),
            (429, LegResult.BUSY),
            (499, LegResult.CLIENT_ERROR),
            (500, LegResult.FAILED),
            (503, LegResult.BUSY),
        ],
    )
    def test_a_status_says_whose_error_it_is(self, status: int, result: LegResult) -> None:
        assert result_of(status) is result


class TestLengths:
    HEAD = LegHead(200, (*JSON, ("Content-Length", "3")), RanAt(ReplicaId("a"), US))

    def test_a_length_that_is_right_is_kept_as_it_is_written(self) -> None:
        assert with_length(self.HEAD, b"abc") is self.HEAD

    def test_another_one_is_replaced(self) -> None:
        assert with_length(self.HEAD, b"abcd").headers == (*JSON, ("content-length", "4"))

    def test_a_stream_has_none(self) -> None:
        bare = without_length(self.HEAD)
        assert bare.headers == JSON
        assert without_length(bare) is bare
