from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.request.answer_events import TokenUsage
from gateway.request.event_scanner import EventScanner


def event(document: object) -> bytes:
    return b"data: " + json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def chat(delta: dict[str, object], finish_reason: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice], **more})


def completion(text: str, finish_reason: str | None = None) -> bytes:
    return event({"id": "cmpl-1", "choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]})


ROLE = chat({"role": "assistant", "content": ""})
HELLO = chat({"content": "Hello"})
WORLD = chat({"content": " wörld\n\n"})
STOP = chat({"content": ""}, "stop")
USAGE = event(
    {
        "choices": [],
        "usage": {"prompt_tokens": 22, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 16}},
    }
)
DONE = b"data: [DONE]\n\n"
WHOLE = ROLE + HELLO + WORLD + STOP + USAGE + DONE
BUSY = event({"error": {"message": "busy", "type": "Service Unavailable", "param": None, "code": 503}})
ABORT = chat({"content": "x"}, "abort", stop_reason=None)


def named(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\n".encode() + event({"type": kind, **fields})


RESPONSE = {"id": "resp_1", "object": "response", "status": "in_progress", "error": None, "usage": None}
COUNTED = {"input_tokens": 14, "input_tokens_details": {"cached_tokens": 8}, "output_tokens": 16}
CREATED = named("response.created", response=RESPONSE, sequence_number=0)
ADDED = named("response.output_item.added", item={"type": "message", "content": []}, sequence_number=1)
DELTA = named("response.output_text.delta", delta="Hello", sequence_number=2)
COMPLETED = named("response.completed", response={**RESPONSE, "status": "completed", "usage": COUNTED})
INCOMPLETE = named("response.incomplete", response={**RESPONSE, "status": "incomplete", "usage": COUNTED})
RESPONSE_FAILED = named("response.failed", response={**RESPONSE, "status": "failed"})
RESPONSE_CANCELLED = named("response.completed", response={**RESPONSE, "status": "cancelled"})
WHOLE_RESPONSE = CREATED + named("response.in_progress", response=RESPONSE) + ADDED + DELTA + DELTA + COMPLETED

MESSAGE_START = named("message_start", message={"id": "m", "usage": {"input_tokens": 22, "output_tokens": 0}})
BLOCK_START = named("content_block_start", index=0, content_block={"type": "text", "text": ""})
PING = named("ping")
BLOCK_DELTA = named("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hello"})
BLOCK_STOP = named("content_block_stop", index=0)
MESSAGE_DELTA = named("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 6})
MESSAGE_ABORT = named("message_delta", delta={"stop_reason": None}, usage={"output_tokens": 6})
MESSAGE_STOP = named("message_stop")
WHOLE_MESSAGE = MESSAGE_START + BLOCK_START + PING + BLOCK_DELTA * 2 + BLOCK_STOP + MESSAGE_DELTA + MESSAGE_STOP
RESPONSE_LIMITED = named(
    "response.failed",
    response={**RESPONSE, "status": "failed", "error": {"code": "rate_limit_exceeded", "message": "no"}},
)
VLLM_TRIPS = """2 validation errors for ChatCompletionStreamResponse
model
  Field required [type=missing, input_value={'error': {'message': 'Th...am': None, 'code': 503}}, input_type=dict]
    For further information visit https://errors.pydantic.dev/2.14/v/missing"""
OVERLOADED = named("error", error={"type": "overloaded_error", "message": "busy"})


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted({cut % (len(stream) + 1) for cut in cuts}), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges) if start < end]


def scan(*parts: bytes) -> tuple[EventScanner, bytes]:
    scanner = EventScanner()
    released = b"".join([scanner.feed(part) for part in parts])
    if scanner.fault is None:
        released += scanner.close()
    return scanner, released


class TestByteForByte:
    @given(st.lists(st.integers(0, len(WHOLE)), max_size=40))
    def test_any_split_gives_the_same_bytes_and_the_same_story(self, cuts: list[int]) -> None:
        scanner, released = scan(*pieces(WHOLE, cuts))
        assert released == WHOLE
        assert (scanner.data_events, scanner.done, scanner.saw_token, scanner.fault) == (5, True, True, None)
        assert scanner.is_finished
        assert scanner.usage == TokenUsage(22, 6, 16)

    @given(st.lists(st.integers(0, len(WHOLE)), max_size=40))
    def test_carriage_returns_are_boundaries_too(self, cuts: list[int]) -> None:
        stream = WHOLE.replace(b"\n\n", b"\r\n\r\n")
        scanner, released = scan(*pieces(stream, cuts))
        assert released == stream
        assert (scanner.data_events, scanner.done, scanner.usage) == (5, True, TokenUsage(22, 6, 16))

    @given(st.lists(st.integers(0, 2000), max_size=40), st.randoms(use_true_random=False))
    def test_what_is_released_always_ends_with_an_event(self, cuts: list[int], rng: random.Random) -> None:
        parts = [ROLE, *rng.choices([HELLO, WORLD, b": keep-alive\n\n", USAGE], k=12)]
        scanner = EventScanner()
        for piece in pieces(b"".join(parts), cuts):
            released = scanner.feed(piece)
            assert released.endswith(b"\n\n") or not released

    def test_nothing_of_half_an_event_gets_out(self) -> None:
        scanner = EventScanner()
        assert scanner.feed(ROLE + HELLO + WORLD[:20]) == ROLE + HELLO
        assert scanner.feed(WORLD[20:-1]) == b""
        assert scanner.feed(WORLD[-1:]) == WORLD

    def test_a_last_event_without_its_blank_line_still_counts(self) -> None:
        scanner, released = scan(ROLE + HELLO + b"data: [DONE]\n")
        assert scanner.done
        assert released == ROLE + HELLO + b"data: [DONE]\n"


class TestFirstToken:
    @pytest.mark.parametrize(
        "first",
        [
            HELLO,
            chat({"role": "assistant", "content": "Hi"}),
            chat({"role": "assistant", "content": None, "reasoning": "hm"}),
            chat({"role": "assistant", "tool_calls": [{"index": 0}]}),
            chat({"content": ""}),
            chat({"role": "assistant", "content": ""}, "stop"),
            completion("x"),
            completion(""),
            event({"type": "something.new"}),
            DELTA,
            named("response.reasoning_text.delta", delta="hm"),
            named("response.function_call_arguments.delta", delta="{"),
            COMPLETED,
            INCOMPLETE,
            BLOCK_DELTA,
            named("content_block_delta", delta={"type": "input_json_delta", "partial_json": ""}),
            named("content_block_delta", delta={"type": "thinking_delta", "thinking": "hm"}),
            MESSAGE_DELTA,
        ],
    )
    def test_these_are_tokens(self, first: bytes) -> None:
        scanner = EventScanner()
        scanner.feed(first)
        assert scanner.saw_token

    @pytest.mark.parametrize(
        "first",
        [
            ROLE,
            chat({"role": "assistant", "content": None}),
            USAGE,
            b": keep-alive\n\n",
            b"retry: 1000\n\n",
            DONE,
            BUSY,
            ABORT,
            CREATED,
            named("response.in_progress", response=RESPONSE),
            ADDED,
            RESPONSE_FAILED,
            RESPONSE_CANCELLED,
            MESSAGE_START,
            BLOCK_START,
            PING,
            OVERLOADED,
        ],
    )
    def test_these_are_not(self, first: bytes) -> None:
        scanner = EventScanner()
        scanner.feed(first)
        assert not scanner.saw_token

    def test_comments_are_no_data(self) -> None:
        scanner, _ = scan(ROLE + b": keep-alive\n\n" + HELLO, b": keep-alive\n\n", HELLO + b": keep-alive\n\n" + DONE)
        assert scanner.data_events == 3


class TestFaults:
    @given(st.lists(st.integers(0, 2000), max_size=20))
    def test_an_error_event_is_held_back_and_so_is_what_follows(self, cuts: list[int]) -> None:
        scanner, released = scan(*pieces(ROLE + HELLO + BUSY + DONE, cuts))
        assert released == ROLE + HELLO
        assert scanner.fault is not None
        assert scanner.fault.code == 503
        assert scanner.fault.body == BUSY[6:-2]

    @pytest.mark.parametrize(
        ("fault", "code"),
        [
            (BUSY, 503),
            (event({"error": {"message": "no", "code": "400"}}), 400),
            (event({"error": {"message": "no", "code": "context_length_exceeded"}}), 400),
            (event({"error": {"message": "no", "type": "server_error", "code": "rate_limit_exceeded"}}), 429),
            (event({"error": {"message": "no", "type": "rate_limit_error", "code": "who_knows"}}), 429),
            (event({"error": {"message": "no", "type": "overloaded_error", "code": 200}}), None),
            (event({"error": {"message": "no", "type": ["overloaded"], "code": {}}}), None),
            (event({"error": "The model is scaling"}), None),
            (event({"error": "Model is overloaded", "error_type": "overloaded"}), 503),
            (event({"object": "error", "message": "no", "code": 400}), 400),
            (b'event: error\ndata: {"message":"no"}\n\n', None),
            (b"event: error\ndata: it broke\n\n", None),
            (OVERLOADED, 503),
            (event({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}), 400),
            (event({"type": "error", "error": {"type": "api_error", "message": "no"}}), None),
            (named("error", error={"type": "ServiceUnavailableError", "message": "no"}), 503),
            (named("error", error={"type": "internal_error", "message": VLLM_TRIPS}), 503),
            (named("error", error={"type": "internal_error", "message": "it broke"}), None),
            (named("error", code="server_error", message="no", sequence_number=4), None),
            (named("error", code="rate_limit_exceeded", message="no", sequence_number=4), 429),
            (RESPONSE_FAILED, None),
            (RESPONSE_LIMITED, 429),
            (named("response.failed", response={"error": {"code": "server_error", "message": "no"}}), None),
            (RESPONSE_CANCELLED, None),
            (b'data: {"message":"no"}\nevent: error\n\n', None),
        ],
    )
    @pytest.mark.parametrize("before", [b"", ROLE, ROLE + HELLO])
    def test_every_kind_of_error_event_is_seen(self, before: bytes, fault: bytes, code: int | None) -> None:
        scanner = EventScanner()
        assert scanner.feed(before) + scanner.feed(fault) == before
        assert scanner.fault is not None
        assert scanner.fault.code == code

    @pytest.mark.parametrize("reason", ["abort", "error"])
    def test_an_abort_that_looks_like_an_end_is_a_fault(self, reason: str) -> None:
        scanner, released = scan(ROLE + HELLO, chat({"content": "x"}, reason) + DONE)
        assert scanner.fault is not None
        assert released == ROLE + HELLO

    def test_the_words_alone_are_no_fault(self) -> None:
        talk = chat({"content": "error"}) + chat({"content": '"error": {"abort"'}) + completion("abort")
        scanner, released = scan(ROLE + talk, talk, STOP + DONE)
        assert scanner.fault is None
        assert released == ROLE + talk + talk + STOP + DONE

    def test_a_null_error_is_none(self) -> None:
        scanner, _ = scan(chat({"content": "x"}, error=None))
        assert scanner.fault is None

    @pytest.mark.parametrize("garbage", [b"data: <html>\n\n", b"data: {\n\n", b"data: null\n\n", b"data: \xff\n\n"])
    def test_garbage_before_the_first_token_is_a_fault(self, garbage: bytes) -> None:
        scanner, released = scan(ROLE, garbage)
        assert scanner.fault is not None
        assert released == ROLE

    def test_half_an_event_at_the_end_is_a_fault(self) -> None:
        scanner = EventScanner()
        scanner.feed(ROLE + HELLO + WORLD[:-5])
        assert scanner.close() == b""
        assert scanner.fault is not None


class TestOddEvents:
    @pytest.mark.parametrize(
        "payload", ["5", '"text"', "[]", "[{}]", "true", "null", "NaN", '{"choices":5}', '{"choices":[1]}', "{"]
    )
    def test_a_stream_that_begins_with_what_is_no_event_is_no_answer(self, payload: str) -> None:
        scanner, released = scan(f"data: {payload}\n\n".encode())
        assert scanner.fault is not None
        assert released == b""

    def test_so_is_one_in_another_text_than_utf_8(self) -> None:
        scanner, _ = scan(b'data: {"choices":[{"delta":{"content":"\xff\xfe"}}]}\n\n')
        assert scanner.fault is not None

    @pytest.mark.parametrize("payload", [b"5", b'["error"]', b'"error"', b"\xff"])
    def test_one_that_has_begun_goes_on(self, payload: bytes) -> None:
        """Events of unknown meaning are passed on, since the client may know them."""
        sent = (chat({"content": "x"}), b"data: " + payload + b"\n\n", chat({}, "stop"))
        scanner, released = scan(*sent)
        assert (scanner.fault, released) == (None, b"".join(sent))


class TestEnd:
    @pytest.mark.parametrize("stream", [ROLE + HELLO + STOP, ROLE + HELLO + STOP + USAGE, ROLE + HELLO + DONE])
    def test_a_finish_reason_or_done_is_an_end(self, stream: bytes) -> None:
        scanner, _ = scan(stream[:-20], stream[-20:])
        assert scanner.is_finished

    def test_without_either_it_broke_off(self) -> None:
        assert not scan(ROLE + HELLO)[0].is_finished
        assert not scan(ROLE, HELLO, HELLO, HELLO, HELLO, HELLO)[0].is_finished

    def test_streams_of_other_shapes_may_simply_end(self) -> None:
        assert scan(b'event: other\ndata: {"type":"other"}\n\n')[0].is_finished

    def test_usage_in_every_event_counts_once(self) -> None:
        counted = [chat({"content": "x"}, usage={"prompt_tokens": 5, "completion_tokens": n}) for n in range(9)]
        assert scan(ROLE, *counted, STOP, DONE)[0].usage == TokenUsage(5, 8, None)

    def test_no_usage_is_none(self) -> None:
        assert scan(ROLE + chat({"content": "usage"}, usage=None) + STOP + DONE)[0].usage is None


@pytest.mark.parametrize(
    ("whole", "data_events", "usage", "response_id"),
    [(WHOLE_RESPONSE, 6, TokenUsage(14, 16, 8), "resp_1"), (WHOLE_MESSAGE, 8, TokenUsage(22, 6, None), None)],
    ids=["response", "message"],
)
@given(cuts=st.lists(st.integers(0, max(len(WHOLE_RESPONSE), len(WHOLE_MESSAGE))), max_size=40))
def test_any_split_of_named_events_gives_the_same_bytes_and_the_same_story(
    whole: bytes, data_events: int, usage: TokenUsage, response_id: str | None, cuts: list[int]
) -> None:
    scanner, released = scan(*pieces(whole, cuts))
    assert released == whole
    assert (scanner.data_events, scanner.done, scanner.fault) == (data_events, True, None)
    assert scanner.is_finished
    assert (scanner.usage, scanner.response_id) == (usage, response_id)


class TestResponses:
    def test_the_id_is_known_before_the_first_token(self) -> None:
        scanner = EventScanner()
        scanner.feed(CREATED)
        assert (scanner.response_id, scanner.saw_token) == ("resp_1", False)

    @pytest.mark.parametrize("end", [COMPLETED, INCOMPLETE])
    def test_it_ends_with_its_own_event_and_not_before(self, end: bytes) -> None:
        assert not scan(CREATED + ADDED + DELTA, DELTA)[0].is_finished
        assert scan(CREATED + ADDED + DELTA, DELTA, end)[0].is_finished

    def test_a_delta_that_talks_of_the_end_is_not_the_end(self) -> None:
        talk = named("response.output_text.delta", delta='say "response.completed" or "message_stop"')
        scanner, released = scan(CREATED + DELTA, talk)
        assert (scanner.done, scanner.fault, released) == (False, None, CREATED + DELTA + talk)


class TestMessages:
    def test_it_ends_with_its_own_event_and_not_before(self) -> None:
        assert not scan(MESSAGE_START + BLOCK_DELTA, BLOCK_STOP, MESSAGE_DELTA)[0].is_finished

    def test_an_end_without_a_reason_is_an_abort(self) -> None:
        scanner, released = scan(MESSAGE_START + BLOCK_DELTA, MESSAGE_ABORT, MESSAGE_STOP)
        assert scanner.fault is not None
        assert released == MESSAGE_START + BLOCK_DELTA + MESSAGE_ABORT

    def test_a_count_in_between_is_no_abort(self) -> None:
        scanner, _ = scan(MESSAGE_START + BLOCK_DELTA, MESSAGE_ABORT, BLOCK_DELTA, MESSAGE_DELTA, MESSAGE_STOP)
        assert (scanner.fault, scanner.done) == (None, True)


class TestContentEvents:
    """Count of content events, used where the engine gives no count of tokens."""

    @pytest.mark.parametrize(
        ("pieces", "expected"),
        [
            ((ROLE, HELLO, WORLD, STOP, DONE), 2),
            ((ROLE + HELLO + WORLD + STOP + DONE,), 2),
            ((ROLE, HELLO, WORLD, chat({"content": "!"}, "stop"), DONE), 3),
            ((ROLE, HELLO, *[WORLD] * 50, STOP, DONE), 51),
            ((completion("a"), completion("b"), completion("", "length"), DONE), 2),
            ((completion("a"), completion("b", "length"), DONE), 2),
            ((ROLE, HELLO, WORLD), 2),
            ((ROLE,), 0),
            ((chat({"role": "assistant", "content": "Hello"}), STOP, DONE), 1),
            ((CREATED, ADDED, DELTA, DELTA, COMPLETED), 2),
        ],
    )
    def test_opening_and_closing_events_are_not_content(self, pieces: tuple[bytes, ...], expected: int) -> None:
        scanner, _ = scan(*pieces)
        assert scanner.content_events == expected

    def test_of_messages_only_deltas_are(self) -> None:
        scanner, _ = scan(MESSAGE_START, BLOCK_START, BLOCK_DELTA, BLOCK_DELTA, BLOCK_STOP, MESSAGE_DELTA, MESSAGE_STOP)
        assert scanner.content_events == 2

    def test_a_message_left_early_has_counted_its_prompt(self) -> None:
        scanner, _ = scan(MESSAGE_START + BLOCK_DELTA, BLOCK_DELTA)
        assert scanner.usage_so_far == TokenUsage(22, None, None)


class TestOversizedEvents:
    def test_they_go_through_unseen_and_what_follows_is_seen_again(self) -> None:
        huge = chat({"content": "error " * 200})
        scanner = EventScanner(event_bytes_max=500)
        stream = ROLE + huge + HELLO + BUSY
        released = b"".join([scanner.feed(stream[at : at + 90]) for at in range(0, len(stream), 90)])
        assert released == ROLE + huge + HELLO
        assert scanner.fault is not None
        assert scanner.data_events == 4

    @given(st.integers(1, 700))
    def test_any_size_of_pieces_keeps_the_bytes(self, size: int) -> None:
        stream = ROLE + chat({"content": "y" * 900}) + HELLO + chat({"content": "z" * 900}) + STOP + DONE
        scanner = EventScanner(event_bytes_max=300)
        released = b"".join([scanner.feed(stream[at : at + size]) for at in range(0, len(stream), size)])
        assert released + scanner.close() == stream
        assert scanner.done

    def test_the_buffer_is_bounded(self) -> None:
        scanner = EventScanner(event_bytes_max=1000)
        for _ in range(100):
            scanner.feed(b"x" * 100)
        assert len(scanner._framer.pending) <= 1000


class TestWhatADecodeWorkerGivesUp:
    """vllm-ascend ends a request that it gives up with `stop`, possibly without any text."""

    RECOMPUTED = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": "recomputed"}]})

    @pytest.mark.parametrize("before", [b"", ROLE + HELLO], ids=["at once", "midway"])
    def test_it_is_no_end(self, before: bytes) -> None:
        scanner = EventScanner(may_give_up=True)
        assert scanner.feed(before + self.RECOMPUTED + DONE) == before
        assert scanner.fault is not None
        assert scanner.fault.code == 503
        assert not scanner.done

    def test_piece_by_piece(self) -> None:
        scanner = EventScanner(may_give_up=True)
        for piece in (ROLE, HELLO, WORLD):
            assert scanner.feed(piece) == piece
        assert scanner.feed(self.RECOMPUTED) == b""
        assert scanner.fault is not None

    def test_elsewhere_it_is_a_text_that_a_client_stops_at(self) -> None:
        scanner = EventScanner()
        assert scanner.feed(ROLE + HELLO + self.RECOMPUTED + DONE) == ROLE + HELLO + self.RECOMPUTED + DONE
        assert scanner.fault is None

    def test_a_text_that_says_it_is_a_text(self) -> None:
        scanner = EventScanner(may_give_up=True)
        said = ROLE + HELLO + chat({"content": '"recomputed"'}) + chat({"content": "recomputed"})
        assert scanner.feed(said) == said
