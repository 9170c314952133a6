"""The unmodified Anthropic SDK against one gateway, and against one that forwards everything to the next region."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest

from gateway.core.kernel.events import DrainRequested
from loadgen.engine.faults import EngineFault, FaultMode
from loadgen.engine.tokens import PromptMessage, chat_prompt, token_count
from tests.support.core import EU, MODEL, US
from tests.support.served import HELLO, HELLO_ANSWERED, Ports, Served, expected, in_thread, served

TOOL: Any = {
    "name": "weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
}


@asynccontextmanager
async def client_of(up: Served, **options: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=up.url, api_key="client", max_retries=0, **options) as client:
        yield client


def text_of(message: anthropic.types.Message) -> str:
    (block,) = message.content
    assert block.type == "text"
    return block.text


class TestMessages:
    async def test_whole(self, up: Served, across: bool) -> None:
        async with client_of(up) as client:
            raw = await client.messages.with_raw_response.create(model=MODEL, messages=HELLO, max_tokens=6)
            message = await raw.parse()
        assert (text_of(message), message.stop_reason) == (HELLO_ANSWERED, "max_tokens")
        assert message.usage.output_tokens == 6
        assert message._request_id == raw.headers["request-id"] == raw.headers["x-request-id"]
        assert raw.headers["x-nightside-region"] == (EU.region if across else US.region)

    async def test_a_system_prompt_and_blocks(self, up: Served) -> None:
        said: Any = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
        async with client_of(up) as client:
            message = await client.messages.create(model=MODEL, system="be brief", messages=said, max_tokens=6)
        assert text_of(message) == expected(("system", "be brief"), ("user", "hello"))

    async def test_streamed(self, up: Served) -> None:
        async with client_of(up) as client:
            async with client.messages.stream(model=MODEL, messages=HELLO, max_tokens=6) as stream:
                said = "".join([text async for text in stream.text_stream])
                final = await stream.get_final_message()
        assert said == text_of(final) == HELLO_ANSWERED
        assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 6)
        assert final.usage.input_tokens > 0

    async def test_events_come_with_their_names(self, up: Served) -> None:
        async with client_of(up) as client:
            events = await client.messages.create(model=MODEL, messages=HELLO, max_tokens=2, stream=True)
            kinds = [event.type async for event in events]
        assert kinds == [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]

    async def test_blocking(self, up: Served) -> None:
        def ask() -> None:
            with anthropic.Anthropic(base_url=up.url, api_key="client", max_retries=0) as client:
                whole = client.messages.create(model=MODEL, messages=HELLO, max_tokens=6)
                with client.messages.stream(model=MODEL, messages=HELLO, max_tokens=6) as stream:
                    said = stream.get_final_text()
            assert text_of(whole) == said == HELLO_ANSWERED

        await in_thread(ask)

    @pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
    async def test_a_tool_is_called(self, up: Served, choice: Any) -> None:
        asked: Any = {
            "model": MODEL,
            "messages": HELLO,
            "max_tokens": 100,
            "tools": [TOOL],
            "tool_choice": choice,
        }
        async with client_of(up) as client:
            whole = await client.messages.create(**asked)
            async with client.messages.stream(**asked) as stream:
                streamed = await stream.get_final_message()
        for message in (whole, streamed):
            block: Any = message.content[0]
            assert message.stop_reason == "tool_use"
            assert block.type == "tool_use"
            assert block.name == "weather"
            assert set(block.input) == {"city", "days"}

    async def test_a_tool_s_answer_is_taken(self, up: Served) -> None:
        called: Any = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "x"}}
        answered: Any = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}
        said: Any = [*HELLO, {"role": "assistant", "content": [called]}, {"role": "user", "content": [answered]}]
        async with client_of(up) as client:
            message = await client.messages.create(model=MODEL, messages=said, max_tokens=6, tools=[TOOL])
        assert len(text_of(message)) == 24

    async def test_tokens_are_counted_before_asking(self, up: Served) -> None:
        async with client_of(up) as client:
            counted = await client.messages.count_tokens(model=MODEL, messages=HELLO)
        assert counted.input_tokens == token_count(chat_prompt([PromptMessage("user", "hello")]))


async def test_models(up: Served) -> None:
    async with client_of(up) as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).lifecycle == "active"
        with pytest.raises(anthropic.NotFoundError) as caught:
            await client.models.retrieve("nope")
    assert (caught.value.error_code, caught.value.type) == ("model_not_found", "not_found_error")


class TestErrors:
    async def test_each_has_its_type_its_code_and_its_request(self, up: Served) -> None:
        async with client_of(up) as client:
            with pytest.raises(anthropic.NotFoundError) as unknown:
                await client.messages.create(model="nope", messages=HELLO, max_tokens=6)
            with pytest.raises(anthropic.BadRequestError) as reserved:
                await client.messages.create(
                    model=MODEL, messages=HELLO, max_tokens=6, extra_body={"kv_transfer_params": {}}
                )
            with pytest.raises(anthropic.NotFoundError) as nowhere:
                await client.messages.batches.list()
        codes = [caught.value.error_code for caught in (unknown, reserved, nowhere)]
        assert codes == ["model_not_found", "unsupported_parameter", "not_found"]
        kinds = [caught.value.type for caught in (unknown, reserved, nowhere)]
        assert kinds == ["not_found_error", "invalid_request_error", "not_found_error"]
        assert all(caught.value.request_id for caught in (unknown, reserved, nowhere))
        assert isinstance(unknown.value.body, dict)
        assert unknown.value.body["error"]["code"] == "model_not_found"

    async def test_an_engine_s_own_refusal_is_understood(self, up: Served) -> None:
        async with client_of(up) as client:
            with pytest.raises(anthropic.BadRequestError) as whole:
                await client.messages.create(model=MODEL, messages=HELLO, max_tokens=9, extra_body={"temperature": -1})
            with pytest.raises(anthropic.BadRequestError) as streamed:
                await client.messages.create(model=MODEL, messages=HELLO, max_tokens=10**6, stream=True)
        assert whole.value.type == streamed.value.type == "invalid_request_error"
        assert "temperature" in (whole.value.api_message or "")

    async def test_a_gateway_that_drains_says_that_it_is_overloaded(
        self, tmp_path: Path, unused_tcp_port_factory: Ports
    ) -> None:
        async with served(tmp_path, unused_tcp_port_factory) as up, client_of(up) as client:
            up.gateway.driver.submit(DrainRequested())
            with pytest.raises(anthropic.ServiceUnavailableError) as caught:
                await client.messages.create(model=MODEL, messages=HELLO, max_tokens=6)
        assert (caught.value.type, caught.value.error_code) == ("overloaded_error", "draining")
        assert float(caught.value.response.headers["retry-after"]) > 0

    async def test_an_engine_that_fails_is_a_502(self, tmp_path: Path, unused_tcp_port_factory: Ports) -> None:
        async with served(tmp_path, unused_tcp_port_factory) as up, client_of(up) as client:
            up.engines[0].set_fault(EngineFault(FaultMode.ERROR_EVENT_FIRST))
            with pytest.raises(anthropic.InternalServerError) as caught:
                await client.messages.create(model=MODEL, messages=HELLO, max_tokens=6, stream=True)
        assert (caught.value.status_code, caught.value.error_code) == (502, "engine_failed")

    @pytest.mark.parametrize("mode", [FaultMode.DIE_MIDSTREAM, FaultMode.ABORT_MIDSTREAM])
    async def test_a_stream_that_breaks_off_raises(self, slow_and_broken: Served, mode: FaultMode) -> None:
        """The engine is slow, so that a token reaches the client before the break."""
        slow_and_broken.engines[0].set_fault(EngineFault(mode))
        async with client_of(slow_and_broken) as client:
            events = await client.messages.create(model=MODEL, messages=HELLO, max_tokens=6, stream=True)
            with pytest.raises(anthropic.APIStatusError) as caught:
                _ = [event async for event in events]
        assert (caught.value.type, caught.value.error_code) == ("api_error", "engine_failed_midstream")


class TestLeaving:
    """A token takes 90 ms here and 500 are requested: an answer that stops within the test was aborted."""

    async def test_a_stream_that_is_closed_ends_at_the_engine(self, slow: Served) -> None:
        async with client_of(slow) as client:
            async with client.messages.stream(model=MODEL, messages=HELLO, max_tokens=500) as stream:
                async for _ in stream.text_stream:
                    break
                await slow.runs(1)
            await slow.runs(0)

    async def test_a_call_that_is_cancelled_ends_at_the_engine(self, slow: Served) -> None:
        async with client_of(slow) as client:
            async with asyncio.TaskGroup() as tasks:
                asked = tasks.create_task(client.messages.create(model=MODEL, messages=HELLO, max_tokens=500))
                await slow.runs(1)
                asked.cancel()
            await slow.runs(0)
