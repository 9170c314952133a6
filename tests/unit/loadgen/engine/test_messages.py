from __future__ import annotations

import json
from typing import Any

import anthropic.types
import pytest

from loadgen.engine.api_requests import GenerationRequest
from loadgen.engine.fields import ApiError
from loadgen.engine.messages import MessagesAnswer, count_tokens, parse_messages
from loadgen.engine.tokens import PromptMessage, chat_prompt, continuation, token_count
from loadgen.engine.tools import Tool, call_arguments
from loadgen.engine.vocabulary import FinishReason
from tests.support.named_events import events_of

TOOL = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {}}}}
HELLO = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 6}


def parse(**fields: Any) -> GenerationRequest:
    return parse_messages("application/json", json.dumps({**HELLO, **fields}).encode(), ("m",))


def answer(**fields: Any) -> MessagesAnswer:
    request = parse(**fields)
    output = continuation("m", request.prompt, 3)
    if request.tool is not None:
        output = call_arguments(request.tool, model="m", prompt=request.prompt)
    return MessagesAnswer(request, "chatcmpl-1", 1, 5, output, cached_tokens=2)


class TestRequests:
    @pytest.mark.parametrize("system", ["be brief", [{"type": "text", "text": "be brief"}]])
    def test_the_system_prompt_comes_first(self, system: object) -> None:
        assert parse(system=system).prompt == chat_prompt(
            [PromptMessage("system", "be brief"), PromptMessage("user", "hello")]
        )

    @pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
    def test_a_tool_must_be_called(self, choice: object) -> None:
        assert parse(tools=[TOOL], tool_choice=choice).tool == Tool("weather", TOOL["input_schema"])  # type: ignore[arg-type]
        assert parse(tools=[TOOL], tool_choice={"type": "auto"}).tool is None

    @pytest.mark.parametrize(
        "fields", [{"max_tokens": None}, {"max_tokens": 0}, {"messages": None}, {"tool_choice": 5}, {"tools": [5]}]
    )
    def test_what_cannot_be_answered_is_refused(self, fields: dict[str, Any]) -> None:
        with pytest.raises(ApiError) as caught:
            parse(**fields)
        assert caught.value.messages_content()["error"]["type"] == "invalid_request_error"

    def test_tokens_are_counted_as_they_would_be(self) -> None:
        body = json.dumps({"messages": HELLO["messages"]}).encode()
        assert count_tokens("application/json", body, ("m",)) == {"input_tokens": token_count(parse().prompt)}


class TestAnswers:
    @pytest.mark.parametrize(
        ("reason", "named"),
        [(FinishReason.STOP, "end_turn"), (FinishReason.LENGTH, "max_tokens"), (FinishReason.ABORT, None)],
    )
    def test_whole_ones_are_what_the_sdk_expects(self, reason: FinishReason, named: str | None) -> None:
        made = answer()
        message = anthropic.types.Message.model_validate(json.loads(made.whole(3, reason)))
        assert message.stop_reason == named
        assert message.content[0].type == "text"
        assert message.content[0].text == made.output.decode()
        assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (3, 2)

    @pytest.mark.parametrize("pieces", [[(0, 3)], [(0, 1), (1, 3)]])
    def test_a_stream_has_one_block(self, pieces: list[tuple[int, int]]) -> None:
        made = answer()
        parts = [made.piece(start, end, FinishReason.STOP if end == 3 else None) for start, end in pieces]
        read = events_of(b"".join(parts))
        assert [event["type"] for event in read] == [
            "message_start",
            "content_block_start",
            *["content_block_delta"] * 3,
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
        assert "".join(event["delta"]["text"] for event in read[2:5]) == made.output.decode()
        assert read[-2]["usage"]["output_tokens"] == 3

    def test_a_call_carries_its_name_and_arguments(self) -> None:
        made = answer(tools=[TOOL], tool_choice={"type": "any"})
        tokens = len(made.output) // 4
        whole = json.loads(made.whole(tokens, FinishReason.STOP))
        (block,) = whole["content"]
        assert (whole["stop_reason"], block["type"], block["name"]) == ("tool_use", "tool_use", "weather")
        assert set(block["input"]) == {"city"}
        deltas = [event["delta"] for event in events_of(made.piece(0, tokens, None)) if "delta" in event]
        assert json.loads("".join(delta["partial_json"] for delta in deltas)) == block["input"]

    def test_arguments_that_were_cut_off_are_none(self) -> None:
        made = answer(tools=[TOOL], tool_choice={"type": "any"})
        assert json.loads(made.whole(1, FinishReason.LENGTH))["content"][0]["input"] == {}
