from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sse import EventScanner, TokenUsage, inspect_answer


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
            event({"type": "response.created"}),
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
            (event({"error": {"message": "no", "code": "context_length_exceeded"}}), None),
            (event({"error": "The model is scaling"}), None),
            (event({"object": "error", "message": "no", "code": 400}), 400),
            (b'event: error\ndata: {"message":"no"}\n\n', None),
            (b"event: error\ndata: it broke\n\n", None),
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


class TestEnd:
    @pytest.mark.parametrize("stream", [ROLE + HELLO + STOP, ROLE + HELLO + STOP + USAGE, ROLE + HELLO + DONE])
    def test_a_finish_reason_or_done_is_an_end(self, stream: bytes) -> None:
        scanner, _ = scan(stream[:-20], stream[-20:])
        assert scanner.is_finished

    def test_without_either_it_broke_off(self) -> None:
        assert not scan(ROLE + HELLO)[0].is_finished
        assert not scan(ROLE, HELLO, HELLO, HELLO, HELLO, HELLO)[0].is_finished

    def test_streams_of_other_shapes_may_simply_end(self) -> None:
        assert scan(b'event: response.created\ndata: {"type":"response.created"}\n\n')[0].is_finished

    def test_usage_in_every_event_counts_once(self) -> None:
        counted = [chat({"content": "x"}, usage={"prompt_tokens": 5, "completion_tokens": n}) for n in range(9)]
        assert scan(ROLE, *counted, STOP, DONE)[0].usage == TokenUsage(5, 8, None)

    def test_no_usage_is_none(self) -> None:
        assert scan(ROLE + chat({"content": "usage"}, usage=None) + STOP + DONE)[0].usage is None


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
        assert len(scanner._pending) <= 1000


class TestWholeAnswers:
    def test_usage_is_read(self) -> None:
        body = json.dumps(
            {"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}
        )
        assert inspect_answer(body.encode()) == (None, TokenUsage(3, 4, None))

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"[]",
            b"<html>",
            b'{"choices":[{"finish_reason":"abort"}]}',
            b'{"error":{"code":500}}',
            b'{"choices":[{"finish_reason":"stop"}',
        ],
    )
    def test_what_is_no_answer_is_a_fault(self, body: bytes) -> None:
        assert inspect_answer(body)[0] is not None

    def test_faults_quote_nothing(self) -> None:
        fault, _ = inspect_answer(b'{"error":{"message":"your prompt was: secret","code":500}}')
        assert fault is not None
        assert "secret" not in fault.detail
