"""Rest of an answer: as another engine writes it, and as its client reads it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.features.resume.resuming import ResumeRequest
from gateway.features.resume.rewriting import rewriter_for
from gateway.request.answer_events import Said, TokenUsage
from gateway.request.engine_api import CHAT_PATH, COMPLETIONS_PATH, MESSAGES_PATH, RESPONSES_PATH
from gateway.request.legs import OutboundRequest
from gateway.request.sse import events, fields
from tests.fakes.engine import DONE, ROLE, chat_chunk, event, token
from tests.support.core import profile

REMARK = b": somewhere else\n\n"
USAGE = event(
    {
        "id": "other",
        "choices": [],
        "usage": {
            "prompt_tokens": 25,
            "completion_tokens": 4,
            "total_tokens": 29,
            "prompt_tokens_details": {"cached_tokens": 24},
        },
    }
)
STREAM = (ROLE + token(" world"), b": keep-alive\n\n", chat_chunk({"content": "!"}, "length"), USAGE, DONE)


def rewritten(
    path: str, *blocks: bytes, wants_usage: bool = True, is_full: bool = False, **said: Any
) -> list[tuple[str, Any]]:
    told = Said(text="Hello", tokens=3, answer_id="first", created=7, model="llama", index=1, **said)
    rest = ResumeRequest(OutboundRequest(profile("r1"), path, (), b"{}"), told, wants_usage, is_full)
    rewriter = rewriter_for(path, rest, remark=REMARK)
    whole = b"".join([rewriter.adapt(block) for block in blocks] + [rewriter.close()])
    assert whole.count(REMARK) == 1
    named = [fields(each) for each in events(whole)]
    return [
        (name.decode(), payload if payload in (None, b"[DONE]") else json.loads(payload)) for name, payload in named
    ]


def test_a_chat_keeps_its_name_and_begins_no_second_time() -> None:
    first, last, usage, remark, done = (payload for _, payload in rewritten(CHAT_PATH, *STREAM))
    assert first["choices"][0]["delta"] == {"content": " world"}
    assert last["choices"][0]["finish_reason"] == "length"
    for each in (first, last, usage):
        assert (each["id"], each["created"], each["model"]) == ("first", 7, "llama")
    assert usage["usage"] == {
        "prompt_tokens": 22,
        "completion_tokens": 7,
        "total_tokens": 29,
        "prompt_tokens_details": {"cached_tokens": 22},
    }
    assert (remark, done) == (None, b"[DONE]")


def test_usage_that_nobody_asked_for_is_left_out() -> None:
    told = rewritten(CHAT_PATH, *STREAM, wants_usage=False)
    assert not any("usage" in payload for _, payload in told if isinstance(payload, dict))


def test_usage_that_comes_twice_counts_once() -> None:
    told = rewritten(CHAT_PATH, *STREAM[:-1], USAGE, DONE)
    counts = [
        payload["usage"]["completion_tokens"]
        for _, payload in told
        if isinstance(payload, dict) and payload.get("usage")
    ]
    assert counts == [7, 7]
    assert rewritten(MESSAGES_PATH, *STREAM[:-1], USAGE, DONE)[-2][1]["usage"]["output_tokens"] == 7


FULL = (
    ROLE + token(" one too many"),
    chat_chunk({"content": " and more"}, "stop"),
    event({"choices": [], "usage": {"prompt_tokens": 25, "completion_tokens": 1}}),
    DONE,
)


def test_what_had_come_to_its_limit_gets_no_token_more() -> None:
    """Engines always generate a token, so the surplus one is removed."""
    last, usage, _, done = (payload for _, payload in rewritten(CHAT_PATH, *FULL, is_full=True))
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({"content": ""}, "length")
    assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"], done) == (22, 3, b"[DONE]")
    _, stopped, message, _ = rewritten(MESSAGES_PATH, *FULL, is_full=True)
    assert stopped[0] == "content_block_stop"
    assert message[1]["delta"]["stop_reason"] == "max_tokens"
    assert message[1]["usage"]["output_tokens"] == 3
    *_, response = rewritten(
        RESPONSES_PATH, *FULL, is_full=True, response={"id": "r"}, item={"id": "m"}, part={"type": "output_text"}
    )
    assert (response[1]["response"]["status"], response[1]["response"]["usage"]["output_tokens"]) == ("incomplete", 3)
    completion = event({"choices": [{"index": 0, "text": "!", "token_ids": [7], "finish_reason": "stop"}]})
    only, *_ = rewritten(COMPLETIONS_PATH, completion, DONE, is_full=True)
    assert only[1]["choices"] == [{"index": 0, "text": "", "token_ids": [], "finish_reason": "length"}]


def test_a_completion_tells_its_prompt_no_second_time() -> None:
    chunk = event(
        {"id": "other", "choices": [{"index": 0, "text": " world", "prompt_token_ids": [1], "finish_reason": None}]}
    )
    (_, told), *_ = rewritten(
        COMPLETIONS_PATH, chunk, event({"choices": [{"text": "", "finish_reason": "stop"}]}), DONE
    )
    assert (told["id"], told["choices"][0]["text"], told["choices"][0]["prompt_token_ids"]) == ("first", " world", None)


@pytest.mark.parametrize(
    ("finish", "stop_reason", "told"),
    [
        ("stop", None, ("end_turn", None)),
        ("length", None, ("max_tokens", None)),
        ("stop", "###", ("stop_sequence", "###")),
        ("stop", 151643, ("end_turn", None)),
    ],
)
def test_a_message(finish: str, stop_reason: object, told: tuple[str, str | None]) -> None:
    end = {"choices": [{"index": 0, "delta": {"content": "!"}, "finish_reason": finish, "stop_reason": stop_reason}]}
    events_told = [each for each in rewritten(MESSAGES_PATH, STREAM[0], event(end), USAGE, DONE) if each[1] is not None]
    kinds = [name for name, _ in events_told]
    assert kinds == ["content_block_delta"] * 2 + ["content_block_stop", "message_delta", "message_stop"]
    assert all(payload["type"] == name for name, payload in events_told)
    assert [payload["delta"]["text"] for _, payload in events_told[:2]] == [" world", "!"]
    assert {payload["index"] for _, payload in events_told[:3]} == {1}
    _, ending = events_told[3]
    assert (ending["delta"]["stop_reason"], ending["delta"]["stop_sequence"]) == told
    assert ending["usage"]["output_tokens"] == 7
    assert ending["usage"]["input_tokens"] + ending["usage"]["cache_read_input_tokens"] == 22


def test_a_response() -> None:
    begun: dict[str, Any] = {
        "response": {"id": "resp_1", "status": "in_progress", "output": [], "usage": None},
        "item": {"id": "msg_1", "type": "message", "role": "assistant"},
        "part": {"type": "output_text", "text": "", "annotations": []},
        "next_number": 9,
    }
    told = [each for each in rewritten(RESPONSES_PATH, *STREAM, **begun) if each[1] is not None]
    assert [payload["sequence_number"] for _, payload in told] == list(range(9, 15))
    assert [payload.get("delta") for _, payload in told[:2]] == [" world", "!"]
    assert {payload["item_id"] for _, payload in told[:4]} == {"msg_1"}
    assert told[2][1]["text"] == "Hello world!"
    name, last = told[-1]
    response = last["response"]
    assert (name, response["id"], response["status"]) == ("response.completed", "resp_1", "incomplete")
    assert response["output"][0]["content"][0]["text"] == "Hello world!"
    assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (22, 7)


def test_an_engine_that_ends_without_a_word() -> None:
    assert rewritten(MESSAGES_PATH, *STREAM[:-1])[-1][0] == "message_stop"


def test_what_was_said_before_is_no_prompt_of_the_clients() -> None:
    rest = ResumeRequest(
        OutboundRequest(profile("r1"), CHAT_PATH, (), b"{}"), Said(text="a", tokens=3), wants_usage=False
    )
    rewriter = rewriter_for(CHAT_PATH, rest)
    assert rewriter.usage_of_all(TokenUsage(25, 4, 24)) == TokenUsage(22, 4, 24)
    assert rewriter.usage_of_all(None) is None
