"""Assembled answers compared with vLLM's answers, recorded for one request both whole and as a stream
(`tests/recordings`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.request import assembling, engine_api
from gateway.request.assembling import Assembler, From, Unassembled, can_be_assembled
from gateway.request.event_scanner import EventScanner

CHAT, COMPLETIONS = engine_api.CHAT_PATH, engine_api.COMPLETIONS_PATH
RECORDINGS = Path(__file__).parents[3] / "recordings" / "vllm-0.32.0"
CASES = sorted(path.name.removesuffix(".stream.sse") for path in RECORDINGS.glob("*.stream.sse"))
LIMIT = 1 << 20


def recorded(case: str, kind: str) -> bytes:
    return (RECORDINGS / f"{case}.{kind}").read_bytes()


def path_of(case: str) -> str:
    return CHAT if case.startswith("chat") else COMPLETIONS


def assembled(case: str, stream: bytes, size: int = 1 << 20) -> bytes:
    """Assemble a stream fed as the relay does, in pieces of `size` bytes."""
    scanner, assembler = EventScanner(), Assembler(path_of(case), recorded(case, "prefill.json"), bytes_max=LIMIT)
    for start in range(0, len(stream), size):
        assembler.feed(scanner.feed(stream[start : start + size]))
    assembler.feed(scanner.close())
    return assembler.finish()


def test_there_are_recordings_of_each_call() -> None:
    assert {path_of(case) for case in CASES} == set(assembling.TOP) == set(assembling.CHOICE)
    assert len(CASES) == 8


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_engines_own_answer_byte_for_byte(case: str) -> None:
    stream = recorded(case, "stream.sse")
    whole = recorded(case, "whole.json")
    for size in (len(stream), 1, 100):
        assert assembled(case, stream, size) == whole


@pytest.mark.parametrize("case", CASES)
def test_each_field_of_the_engines_own_answer_stands_in_a_table(case: str) -> None:
    whole = json.loads(recorded(case, "whole.json"))
    (choice,) = whole.pop("choices")
    assert set(choice.pop("message", {})) <= set(assembling.MESSAGE)
    assert set(choice) <= set(assembling.CHOICE[path_of(case)])
    assert set(whole) <= set(assembling.TOP[path_of(case)])


@pytest.mark.parametrize("case", CASES)
def test_the_requests_recorded_are_ones_that_are_assembled(case: str) -> None:
    assert can_be_assembled(path_of(case), recorded(case, "request.json"))


@pytest.mark.parametrize(
    "path,fields",
    [
        (CHAT, {"logprobs": True}),
        (COMPLETIONS, {"logprobs": 0}),
        (CHAT, {"tools": [{"type": "function"}]}),
        (engine_api.MESSAGES_PATH, {}),
        (engine_api.RESPONSES_PATH, {"store": False}),
        (engine_api.EMBEDDINGS_PATH, {}),
    ],
)
def test_of_all_else_the_answer_is_asked_for_whole(path: str, fields: dict[str, object]) -> None:
    assert not can_be_assembled(path, json.dumps({"model": "m", **fields}).encode())


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def delta(finish_reason: str | None = None, **fields: object) -> bytes:
    return event(id="1", choices=[{"index": 0, "delta": fields, "finish_reason": finish_reason}])


USAGE = event(choices=[], usage={"prompt_tokens": 1})
ROLE = delta(role="assistant", content="")


def chat(stream: bytes, **prefilled: Any) -> dict[str, Any]:
    skeleton = json.loads(recorded("chat", "prefill.json")) | prefilled
    assembler = Assembler(CHAT, json.dumps(skeleton).encode(), bytes_max=LIMIT)
    assembler.feed(stream)
    result: dict[str, Any] = json.loads(assembler.finish())
    return result


def test_an_answer_of_reasoning_alone_has_no_text() -> None:
    said = chat(ROLE + delta(reasoning="so ") + delta(reasoning="it is") + delta("length") + USAGE)
    assert said["choices"][0]["message"]["reasoning"] == "so it is"
    assert said["choices"][0]["message"]["content"] is None
    said = chat(ROLE + delta("stop") + USAGE)
    assert said["choices"][0]["message"]["content"] == ""


def test_another_version_has_other_fields() -> None:
    """Fields that the prefill's version lacks are not made up, and fields that only the stream has are kept."""
    skeleton = {
        "id": "p",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"content": "x"}}],
        "usage": 1,
    }
    said = Assembler(CHAT, json.dumps(skeleton).encode(), bytes_max=LIMIT)
    said.feed(ROLE + delta("stop", content="a", reasoning_content="r") + USAGE)
    assert json.loads(said.finish()) == {
        "id": "1",
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"content": "a", "role": "assistant", "reasoning_content": "r"},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 1},
    }


@pytest.mark.parametrize(
    "stream,why",
    [
        (b"", "did not tell"),
        (ROLE + delta("stop", content="a"), "did not tell"),
        (ROLE + delta(content="a") + USAGE, "did not tell"),
        (event(choices=[{"index": 1, "delta": {}}]), "another choice"),
        (event(choices=[7]), "another choice"),
        (event(choices=7), "none of this call"),
        (b"data: [1]\n\n", "none of this call"),
        (b"data: x\n\n", "none of this call"),
        (event(choices=[{"index": 0, "delta": 7}]), "no delta"),
        (delta(tool_calls=[{"index": 0}]), "'tool_calls', which is in no table"),
        (delta(content=7), "'content', which"),
        (delta(audio="x"), "'audio', which"),
        (event(citations=["x"], choices=[]), "'citations', which"),
        (event(choices=[{"index": 0, "token_ids": 7}]), "'token_ids', which"),
        (event(choices=[{"index": 0, "token_ids": ["7"]}]), "'token_ids', which"),
        (event(choices=[{"index": 0, "token_ids": [1 << 63]}]), "'token_ids', which"),
        (delta(content="x" * (LIMIT + 1)), "more than"),
        (event(choices=[{"index": 0, "token_ids": [1] * (LIMIT // 8 + 1)}]), "more than"),
    ],
)
def test_what_it_cannot_know_it_does_not_guess(stream: bytes, why: str) -> None:
    with pytest.raises(Unassembled, match=why):
        chat(stream)


@pytest.mark.parametrize(
    "prefilled,why",
    [
        (b"", "one choice"),
        (b"[]", "one choice"),
        (b'{"choices":[]}', "one choice"),
        (b'{"choices":[{"message":7}]}', "no message"),
        (b'{"choices":[{"message":{"content":"a","citations":[]}}]}', "'citations', and streams do not"),
        (b'{"choices":[{"message":{},"routed_experts":"AA"}]}', "'routed_experts', and streams do not"),
        (b'{"choices":[{"message":{}}],"prompt_logprobs":[1]}', "'prompt_logprobs', and streams do not"),
    ],
)
def test_before_the_decode_is_asked_it_is_known_what_its_stream_would_lack(prefilled: bytes, why: str) -> None:
    with pytest.raises(Unassembled, match=why):
        Assembler(CHAT, prefilled, bytes_max=LIMIT)


def test_no_reason_quotes_the_answer() -> None:
    with pytest.raises(Unassembled) as raised:
        chat(delta(content={"secret": "secret"}))
    assert "secret" not in str(raised.value)


def test_every_source_is_in_use() -> None:
    tables = (*assembling.TOP.values(), *assembling.CHOICE.values(), assembling.MESSAGE)
    assert {source for table in tables for source in table.values()} == set(From)
