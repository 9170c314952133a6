from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import Response

from loadgen.engine.fields import ApiError
from loadgen.engine.responses import ResponsesAnswer, ResponsesRequest, ResponseStore, parse_responses
from loadgen.engine.tokens import PromptMessage, chat_prompt, continuation
from loadgen.engine.tools import Tool, call_arguments
from loadgen.engine.vocabulary import FinishReason
from tests.support.named_events import events_of

TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {"city": {}}}}


def parse(known: ResponseStore | None = None, **fields: Any) -> ResponsesRequest:
    body = json.dumps({"input": "hello", **fields}).encode()
    return parse_responses("application/json", body, ("m",), known or ResponseStore())


def answer(tokens: int = 3, **fields: Any) -> ResponsesAnswer:
    request = parse(**fields)
    output = continuation("m", request.prompt, tokens)
    if request.tool is not None:
        output = call_arguments(request.tool, model="m", prompt=request.prompt)
    return ResponsesAnswer(request, "resp_1", 1, 5, output)


class TestRequests:
    @pytest.mark.parametrize(
        ("said", "messages"),
        [
            ("hi", [("user", "hi")]),
            ([{"role": "user", "content": "hi"}], [("user", "hi")]),
            ([{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}], [("user", "hi")]),
            ([{"type": "function_call", "name": "x", "arguments": "{}"}], [("assistant", "{}")]),
            ([{"type": "function_call_output", "output": "rain"}], [("tool", "rain")]),
            ([{"type": "reasoning"}], [("user", '{"type": "reasoning"}')]),
        ],
    )
    def test_input_becomes_a_conversation(self, said: object, messages: list[tuple[str, str]]) -> None:
        request = parse(input=said)
        assert request.messages == tuple(PromptMessage(*each) for each in messages)
        assert request.prompt == chat_prompt(request.messages)

    def test_what_was_said_before_is_remembered_and_instructions_are_not(self) -> None:
        store = ResponseStore()
        first = ResponsesAnswer(parse(store, instructions="be brief"), "resp_1", 1, 5, b" abc def")
        store.put("resp_1", first.stored(2, FinishReason.STOP))
        second = parse(store, input="so?", previous_response_id="resp_1", instructions="be long")
        assert [message.role for message in second.messages] == ["system", "system", "user", "assistant", "user"]
        assert second.messages[3].content == " abc def"

    @pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
    def test_a_tool_must_be_called(self, choice: object) -> None:
        assert parse(tools=[TOOL], tool_choice=choice).tool == Tool("weather", TOOL["parameters"])  # type: ignore[arg-type]
        assert parse(tools=[TOOL]).tool is None

    @pytest.mark.parametrize(
        ("fields", "status"),
        [
            ({"input": None}, 400),
            ({"input": 5}, 400),
            ({"input": [5]}, 400),
            ({"previous_response_id": "nope"}, 404),
            ({"model": "nope"}, 404),
            ({"store": "no"}, 400),
        ],
    )
    def test_what_cannot_be_answered_is_refused(self, fields: dict[str, Any], status: int) -> None:
        with pytest.raises(ApiError) as caught:
            parse(**fields)
        assert caught.value.status == status


class TestAnswers:
    @pytest.mark.parametrize(
        ("reason", "status"), [(FinishReason.STOP, "completed"), (FinishReason.LENGTH, "incomplete")]
    )
    def test_whole_ones_are_what_the_sdk_expects(self, reason: FinishReason, status: str) -> None:
        made = answer(metadata={"a": "b"})
        response = Response.model_validate(json.loads(made.whole(3, reason)))
        assert (response.status, response.output_text) == (status, made.output.decode())
        assert response.metadata == {"a": "b"}

    @pytest.mark.parametrize("pieces", [[(0, 3)], [(0, 1), (1, 3)], [(0, 1), (1, 2), (2, 3)]])
    @pytest.mark.parametrize("fields", [{}, {"tools": [TOOL], "tool_choice": "required"}])
    def test_a_stream_counts_its_events_and_ends_as_the_whole(
        self, pieces: list[tuple[int, int]], fields: dict[str, Any]
    ) -> None:
        made = answer(**fields)
        parts = [made.piece(start, end, FinishReason.STOP if end == 3 else None) for start, end in pieces]
        read = events_of(made.preamble + b"".join(parts))
        assert [event["sequence_number"] for event in read] == list(range(len(read)))
        assert [event["type"] for event in read[:2]] == ["response.created", "response.in_progress"]
        assert read[-1]["type"] == "response.completed"
        assert read[-1]["response"] == json.loads(made.whole(3, FinishReason.STOP))
        said = "".join(event["delta"] for event in read if event["type"].endswith(".delta"))
        assert said == made.output[:12].decode()

    def test_a_call_carries_its_name_and_arguments(self) -> None:
        made = answer(tools=[TOOL], tool_choice="required")
        (item,) = made.body(len(made.output) // 4, FinishReason.STOP)["output"]
        assert (item["type"], item["name"]) == ("function_call", "weather")
        assert set(json.loads(item["arguments"])) == {"city"}

    def test_a_stopping_engine_says_that_it_cancelled(self) -> None:
        assert answer().body(1, FinishReason.ABORT)["status"] == "cancelled"


class TestStore:
    def test_what_is_deleted_or_was_never_there_is_not_found(self) -> None:
        store = ResponseStore()
        store.put("resp_1", answer().stored(3, FinishReason.STOP))
        assert store.get("resp_1").body["id"] == "resp_1"
        assert store.why_not_cancelled("resp_1").status == 400
        assert store.delete("resp_1")["deleted"] is True
        for look in (store.get, store.delete, store.why_not_cancelled):
            with pytest.raises(ApiError) as caught:
                look("resp_1")
            assert caught.value.status == 404

    def test_it_keeps_the_newest(self) -> None:
        store = ResponseStore()
        kept = answer().stored(3, FinishReason.STOP)
        for number in range(1_001):
            store.put(f"resp_{number}", kept)
        with pytest.raises(ApiError):
            store.get("resp_0")
        assert store.get("resp_1") is kept
