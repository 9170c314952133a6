"""Requests that make an engine continue an answer, call by call, and requests that cannot be continued."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.core.placement.prefix_chain import prefix_chain
from gateway.core.vocabulary import NO_HINTS, Hints, RequestProfile
from gateway.features.resume.resuming import REFUSED, ResumeRequest, rest_of
from gateway.request.answer_events import Said
from gateway.request.bodies import read_body
from gateway.request.engine_api import CHAT_PATH, COMPLETIONS_PATH, EMBEDDINGS_PATH, MESSAGES_PATH, RESPONSES_PATH
from gateway.request.kept_answer import NoRemainder
from gateway.request.legs import OutboundRequest
from tests.support.core import profile

ASKED = {"role": "user", "content": "Grüß dich"}
SAID = Said(text='Hel"lo\n', tokens=3)
CHAT: dict[str, Any] = {"model": "llama", "messages": [ASKED], "stream": True}
MESSAGES: dict[str, Any] = {**CHAT, "max_tokens": 10}
RESPONSE: dict[str, Any] = {"model": "llama", "input": "hello", "stream": True, "store": False}
COMPLETION: dict[str, Any] = {"model": "llama", "prompt": "once", "stream": True, "max_tokens": 10}


def rest(path: str, body: dict[str, Any], said: Said = SAID, asked: RequestProfile | None = None) -> ResumeRequest:
    outbound = OutboundRequest(asked or profile("r1"), path, (), json.dumps(body).encode())
    return rest_of(outbound, said, prefix_blocks_max=100)


def body_of(path: str, body: dict[str, Any], said: Said = SAID) -> dict[str, Any]:
    told = rest(path, body, said).outbound
    assert told.path == (path if path == COMPLETIONS_PATH else CHAT_PATH)
    read_body(told.path, told.body, passes_priority=True)
    decoded: dict[str, Any] = json.loads(told.body)
    return decoded


def why_not(path: str, body: dict[str, Any], said: Said = SAID) -> str:
    with pytest.raises(NoRemainder) as raised:
        rest(path, body, said)
    return str(raised.value)


class TestChat:
    def test_the_answer_so_far_is_a_message_that_is_to_be_continued(self) -> None:
        told = body_of(CHAT_PATH, {**CHAT, "max_tokens": 10, "max_completion_tokens": 8, "min_tokens": 2, "seed": 1})
        assert told == {
            "model": "llama",
            "messages": [ASKED, {"role": "assistant", "content": SAID.text}],
            "stream": True,
            "max_tokens": 7,
            "max_completion_tokens": 5,
            "min_tokens": 0,
            "seed": 1,
            "add_generation_prompt": False,
            "continue_final_message": True,
        }

    def test_what_the_client_wrote_stays_byte_for_byte(self) -> None:
        messages = b'[ {"role":"user","content":"\\u00fc"} ]'
        written = b'{"model":"llama", "messages" : %b,"odd":[1.50,  {"a":1}],"stream":true}' % messages
        outbound = OutboundRequest(profile("r1"), CHAT_PATH, (), written)
        told = rest_of(outbound, SAID, prefix_blocks_max=1).outbound.body
        assert b'[ {"role":"user","content":"\\u00fc"} ,{"role":"assistant",' in told
        assert b'"odd":[1.50,  {"a":1}]' in told

    def test_what_the_client_had_continued_itself_goes_on(self) -> None:
        begun = {"role": "assistant", "content": "Well, "}
        asked = {**CHAT, "messages": [ASKED, begun], "continue_final_message": True, "add_generation_prompt": False}
        assert body_of(CHAT_PATH, asked)["messages"] == [ASKED, {**begun, "content": "Well, " + SAID.text}]
        assert "assistant" in why_not(CHAT_PATH, {**CHAT, "messages": [ASKED, begun]})

    def test_at_least_one_token_is_left(self) -> None:
        assert body_of(CHAT_PATH, {**CHAT, "max_tokens": 2})["max_tokens"] == 1

    def test_usage_is_told_only_to_whoever_asked(self) -> None:
        assert not rest(CHAT_PATH, CHAT).wants_usage
        assert not rest(CHAT_PATH, {**CHAT, "stream_options": {"include_usage": False}}).wants_usage
        assert rest(CHAT_PATH, {**CHAT, "stream_options": {"include_usage": True}}).wants_usage

    @pytest.mark.parametrize("name", sorted(REFUSED))
    def test_what_nobody_goes_on_behind(self, name: str) -> None:
        assert why_not(CHAT_PATH, {**CHAT, name: 2}).startswith(f"{name}: ")
        assert rest(CHAT_PATH, {**CHAT, name: None}).said is SAID

    @pytest.mark.parametrize(
        "more",
        [
            {"n": 2},
            {"response_format": {"type": "json_object"}},
            {"tools": [{"type": "function"}], "tool_choice": "required"},
            {"add_generation_prompt": False},
            {"messages": []},
            {"max_tokens": "ten"},
        ],
        ids=lambda more: next(iter(more)),
    )
    def test_nor_these(self, more: dict[str, Any]) -> None:
        assert why_not(CHAT_PATH, {**CHAT, **more})

    @pytest.mark.parametrize(
        "more",
        [
            {"n": 1},
            {"response_format": {"type": "text"}},
            {"tools": [{"type": "function"}], "tool_choice": "auto"},
            {"top_logprobs": 0, "logprobs": False},
        ],
        ids=lambda more: next(iter(more)),
    )
    def test_but_these(self, more: dict[str, Any]) -> None:
        assert body_of(CHAT_PATH, {**CHAT, **more})["messages"][-1]["content"] == SAID.text


class TestCompletions:
    def test_the_prompt_grows(self) -> None:
        told = body_of(COMPLETIONS_PATH, COMPLETION)
        assert (told["prompt"], told["max_tokens"]) == ("once" + SAID.text, 7)
        assert body_of(COMPLETIONS_PATH, {**COMPLETION, "prompt": ["once"]})["prompt"] == "once" + SAID.text

    def test_in_token_ids_where_all_of_them_are_known(self) -> None:
        known = Said(text="ab", tokens=2, token_ids=[8, 9], prompt_token_ids=[1, 2])
        assert body_of(COMPLETIONS_PATH, COMPLETION, known)["prompt"] == [1, 2, 8, 9]
        answer_only = Said(text="ab", tokens=2, token_ids=[8, 9])
        assert body_of(COMPLETIONS_PATH, {**COMPLETION, "prompt": [1, 2]}, answer_only)["prompt"] == [1, 2, 8, 9]
        assert "token ids" in why_not(COMPLETIONS_PATH, {**COMPLETION, "prompt": [1, 2]})

    def test_engines_differ_in_what_they_take_for_no_limit(self) -> None:
        unlimited = {name: value for name, value in COMPLETION.items() if name != "max_tokens"}
        assert "max_tokens" in why_not(COMPLETIONS_PATH, unlimited)
        assert "max_tokens" not in body_of(COMPLETIONS_PATH, unlimited, Said(text="a", tokens=16))

    def test_several_prompts(self) -> None:
        assert "prompt" in why_not(COMPLETIONS_PATH, {**COMPLETION, "prompt": ["a", "b"]})


class TestMessages:
    def test_by_way_of_a_chat(self) -> None:
        turns = [ASKED, {"role": "assistant", "content": [{"type": "text", "text": "hm"}]}, ASKED]
        system = [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]
        asked = {**MESSAGES, "messages": turns, "system": system, "stop_sequences": ["."], "metadata": {"user_id": "u"}}
        told = body_of(MESSAGES_PATH, {**asked, "temperature": 0.5, "thinking": {"type": "disabled"}})
        assert told["messages"] == [
            {"role": "system", "content": "be brief"},
            ASKED,
            {"role": "assistant", "content": "hm"},
            ASKED,
            {"role": "assistant", "content": SAID.text},
        ]
        assert (told["stop"], told["max_tokens"], told["temperature"]) == (["."], 7, 0.5)
        assert told["stream_options"] == {"include_usage": True}
        assert not {"system", "metadata", "stop_sequences", "thinking"} & told.keys()

    @pytest.mark.parametrize(
        "more",
        [
            {"tools": [{"name": "weather"}]},
            {"thinking": {"type": "enabled"}},
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            {"messages": [ASKED, {"role": "assistant", "content": "{"}]},
            {"messages": []},
        ],
    )
    def test_more_than_text(self, more: dict[str, Any]) -> None:
        assert why_not(MESSAGES_PATH, {**MESSAGES, **more})


class TestResponses:
    def test_by_way_of_a_chat(self) -> None:
        turns = [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}
        ]
        asked = {
            **RESPONSE,
            "input": turns,
            "instructions": "be brief",
            "max_output_tokens": 10,
            "metadata": {"a": "b"},
        }
        told = body_of(RESPONSES_PATH, {**asked, "tools": [], "text": {"format": {"type": "text"}}})
        assert told["messages"] == [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": SAID.text},
        ]
        assert told["max_tokens"] == 7
        assert body_of(RESPONSES_PATH, RESPONSE)["messages"][0] == {"role": "user", "content": "hello"}

    @pytest.mark.parametrize(
        "more",
        [
            {"store": True},
            {"store": None},
            {"previous_response_id": "resp_1"},
            {"tools": [{"type": "function"}]},
            {"reasoning": {"effort": "high"}},
            {"text": {"format": {"type": "json_schema"}}},
            {"truncation": "auto"},
            {"input": [{"type": "function_call_output", "output": "x"}]},
            {"include": ["message.output_text.logprobs"]},
        ],
        ids=lambda more: next(iter(more)),
    )
    def test_more_than_text_and_what_is_stored(self, more: dict[str, Any]) -> None:
        assert why_not(RESPONSES_PATH, {**RESPONSE, **more})


def test_other_calls() -> None:
    assert "no call" in why_not(EMBEDDINGS_PATH, {"model": "llama", "input": "a"})


def chained(path: str, body: dict[str, Any], salt: bytes = b"salt") -> RequestProfile:
    parts = read_body(path, json.dumps(body, separators=(",", ":")).encode(), passes_priority=True).prompt_parts()
    prefix, size = prefix_chain(salt, parts, block_bytes=16, blocks_max=100)
    return RequestProfile(
        **{**_fields(profile("r1")), "prefix": prefix, "prompt_bytes": size, "prefix_block_bytes": 16}
    )


def _fields(value: RequestProfile) -> dict[str, Any]:
    return {name: getattr(value, name) for name in RequestProfile.__slots__}  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", [CHAT_PATH, COMPLETIONS_PATH])
def test_its_chain_of_hashes_is_that_of_prompt_and_answer(path: str) -> None:
    """The chain equals that of the conversation's next turn, as far as that turn repeats prompt and answer."""
    long = "word " * 40
    said = Said(text="answer " * 20, tokens=20)
    body = {**CHAT, "messages": [{**ASKED, "content": long}]} if path == CHAT_PATH else {**COMPLETION, "prompt": long}
    grown = dict(body)
    if path == CHAT_PATH:
        grown["messages"] = [*body["messages"], {"role": "assistant", "content": said.text}]
    else:
        grown["prompt"] = long + said.text
    asked, next_turn = chained(path, body), chained(path, grown)
    outbound = OutboundRequest(asked, path, (), json.dumps(body, separators=(",", ":")).encode())
    told = rest_of(outbound, said, prefix_blocks_max=100).outbound.profile
    assert told.prefix == next_turn.prefix
    assert told.prefix[: len(asked.prefix) - 8] == asked.prefix[:-8]
    assert told.appends
    assert told.prompt_bytes >= told.prefix_blocks * 16


@pytest.mark.parametrize(("expected", "left"), [(50, 30), (20, 0), (7, 0), (0, 0)])
def test_the_rest_is_expected_to_have_what_is_left_of_the_hinted_length(expected: int, left: int) -> None:
    asked = replace(profile("r1"), hints=Hints(output_tokens=expected, ends_session=True))
    outbound = OutboundRequest(asked, CHAT_PATH, (), json.dumps(CHAT).encode())
    told = rest_of(outbound, Said(text="answer", tokens=20), prefix_blocks_max=100).outbound.profile
    assert told.hints == Hints(output_tokens=left, ends_session=True)


@pytest.mark.parametrize("hints", [NO_HINTS, Hints(output_tokens=20)])
def test_the_rest_has_no_hints_where_none_is_left(hints: Hints) -> None:
    outbound = OutboundRequest(replace(profile("r1"), hints=hints), CHAT_PATH, (), json.dumps(CHAT).encode())
    told = rest_of(outbound, Said(text="answer", tokens=20), prefix_blocks_max=100).outbound.profile
    assert told.hints is NO_HINTS
