from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from loadgen.engine.presets import TINY
from loadgen.engine.server import EngineServerConfig, serve_engines
from loadgen.engine.tokens import PromptMessage, chat_prompt, continuation, token_count

CONFIG = EngineServerConfig(model="m", engine=TINY, time_scale=0.05, ignore_eos=True, faults=True)
PROMPTS = ["one", "the other"]
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 6}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": PROMPTS, "n": 2, "max_tokens": 5}
EXPECTED = [continuation(voice, prompt.encode(), 5).decode() for prompt in PROMPTS for voice in ("m", "m#1")]


async def ask(path: str, body: dict[str, Any]) -> tuple[int, str]:
    async with serve_engines([CONFIG]) as (server,), aiohttp.ClientSession(server.url) as session:
        async with session.post(path, json=body) as response:
            status, text = response.status, await response.text()
        assert server.load().running == 0
        return status, text


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


class TestSeveral:
    async def test_prompts_and_samples_have_an_index_each(self) -> None:
        status, text = await ask("/v1/completions", COMPLETION)
        told = json.loads(text)
        assert status == 200
        assert [(choice["index"], choice["text"]) for choice in told["choices"]] == list(enumerate(EXPECTED))
        prompt_tokens = sum(token_count(prompt.encode()) for prompt in PROMPTS)
        assert (told["usage"]["prompt_tokens"], told["usage"]["completion_tokens"]) == (prompt_tokens, 20)

    async def test_streamed_they_end_together(self) -> None:
        body = {**COMPLETION, "stream": True, "stream_options": {"include_usage": True}}
        *chunks, last = events((await ask("/v1/completions", body))[1])
        said = ["", "", "", ""]
        for chunk in chunks:
            (choice,) = chunk["choices"]
            said[choice["index"]] += choice["text"]
        assert said == EXPECTED
        assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 20)

    async def test_of_a_chat_the_first_is_what_one_alone_would_be(self) -> None:
        one = json.loads((await ask("/v1/chat/completions", CHAT))[1])["choices"]
        three = json.loads((await ask("/v1/chat/completions", {**CHAT, "n": 3}))[1])["choices"]
        assert three[0] == one[0]
        assert len({choice["message"]["content"] for choice in three}) == 3

    async def test_each_begins_with_its_role(self) -> None:
        chunks = events((await ask("/v1/chat/completions", {**CHAT, "n": 2, "stream": True}))[1])
        roles = [chunk["choices"][0]["index"] for chunk in chunks if "role" in chunk["choices"][0]["delta"]]
        assert sorted(roles) == [0, 1]

    @pytest.mark.parametrize("n", [0, -1, "two", 257, 1.5])
    async def test_a_number_that_is_none_is_refused(self, n: object) -> None:
        status, _ = await ask("/v1/chat/completions", {**CHAT, "n": n})
        assert status == 400


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 3}},
    "required": ["city", "days"],
}


class TestForms:
    @pytest.mark.parametrize("stream", [False, True])
    async def test_an_answer_follows_its_schema(self, stream: bool) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA, "strict": True}}
        body = {**CHAT, "max_tokens": 60, "response_format": form, "stream": stream}
        text = (await ask("/v1/chat/completions", body))[1]
        if stream:
            deltas = [choice["delta"].get("content", "") for each in events(text) for choice in each["choices"]]
            said = json.loads("".join(deltas))
        else:
            (choice,) = json.loads(text)["choices"]
            assert choice["finish_reason"] == "stop"
            said = json.loads(choice["message"]["content"])
        assert said.keys() == {"city", "days"}
        assert said["days"] >= 3

    async def test_in_the_words_of_responses(self) -> None:
        form = {"type": "json_schema", "name": "trip", "schema": SCHEMA}
        body = {"model": "m", "input": "hello", "max_output_tokens": 60, "text": {"format": form}}
        told = json.loads((await ask("/v1/responses", body))[1])
        assert json.loads(told["output"][0]["content"][0]["text"]).keys() == {"city", "days"}

    async def test_any_object(self) -> None:
        body = {**CHAT, "response_format": {"type": "json_object"}}
        (choice,) = json.loads((await ask("/v1/chat/completions", body))[1])["choices"]
        assert json.loads(choice["message"]["content"]) == {}

    async def test_text_is_no_form(self) -> None:
        body = {**CHAT, "response_format": {"type": "text"}}
        (choice,) = json.loads((await ask("/v1/chat/completions", body))[1])["choices"]
        prompt = chat_prompt([PromptMessage("user", "hello")])
        assert choice["message"]["content"] == continuation("m", prompt, 6).decode()

    @pytest.mark.parametrize(
        "form",
        [
            {"type": "yaml"},
            {"type": "json_schema"},
            {"type": "json_schema", "json_schema": {"schema": {"pattern": "a"}}},
        ],
    )
    async def test_a_form_that_cannot_be_followed_is_refused(self, form: object) -> None:
        status, _ = await ask("/v1/chat/completions", {**CHAT, "response_format": form})
        assert status == 400
