"""The unmodified OpenAI SDK against one gateway, and against one that forwards everything to the next region."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from msgspec.structs import replace
from openai.types.responses import Response

from gateway.config.sections import GatewayConfig
from loadgen.engine.faults import EngineFault, FaultMode
from loadgen.engine.pooling import DIMENSIONS, embedding
from loadgen.engine.tokens import continuation
from tests.fakes.engine import FakeEngine
from tests.support.core import EU, MODEL, US
from tests.support.gateways import free_replicas, until
from tests.support.served import HELLO, HELLO_ANSWERED, Ports, Served, expected, in_thread, served

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
TOOL: Any = {"type": "function", "name": "weather", "parameters": WEATHER}


@asynccontextmanager
async def client_of(up: Served, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=up.openai_url, api_key="client", max_retries=0, **options) as client:
        yield client


class TestChat:
    async def test_whole(self, up: Served, across: bool) -> None:
        async with client_of(up) as client:
            raw = await client.chat.completions.with_raw_response.create(model=MODEL, messages=HELLO, max_tokens=6)
        answer = raw.parse()
        assert answer.choices[0].message.content == HELLO_ANSWERED
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 6
        assert answer._request_id
        assert raw.headers["x-nightside-region"] == (EU.region if across else US.region)

    async def test_streamed_with_usage(self, up: Served) -> None:
        async with client_of(up) as client:
            stream = await client.chat.completions.create(
                model=MODEL,
                messages=HELLO,
                max_completion_tokens=6,
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [chunk async for chunk in stream]
        said = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
        assert "".join(said) == HELLO_ANSWERED
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 6

    async def test_blocking(self, up: Served) -> None:
        def ask() -> None:
            with openai.OpenAI(base_url=up.openai_url, api_key="client", max_retries=0) as client:
                whole = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=6)
                chunks = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=6, stream=True)
                said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            assert whole.choices[0].message.content == said == HELLO_ANSWERED

        await in_thread(ask)

    async def test_a_tool_is_called(self, up: Served) -> None:
        asked: Any = {"model": MODEL, "messages": HELLO, "tools": [CHAT_TOOL], "tool_choice": "required"}
        async with client_of(up) as client:
            whole = await client.chat.completions.create(**asked)
            async with client.chat.completions.stream(**asked) as stream:
                streamed = await stream.get_final_completion()
        for completion in (whole, streamed):
            assert completion.choices[0].finish_reason == "tool_calls"
            (call,) = completion.choices[0].message.tool_calls or []
            assert call.type == "function"
            assert (call.function.name, bool(call.id)) == ("weather", True)
            assert set(json.loads(call.function.arguments)) == {"city", "days"}

    async def test_plain_completions(self, up: Served) -> None:
        async with client_of(up) as client:
            whole = await client.completions.create(model=MODEL, prompt="once upon", max_tokens=5)
        assert whole.choices[0].text == continuation(MODEL, b"once upon", 5).decode()


class TestResponses:
    async def ask(self, client: openai.AsyncOpenAI, said: str = "hello", **more: Any) -> Response:
        response = await client.responses.create(model=MODEL, input=said, max_output_tokens=6, **more)
        assert isinstance(response, Response)
        return response

    async def test_whole(self, up: Served) -> None:
        async with client_of(up) as client:
            response = await self.ask(client)
        assert (response.output_text, response.status) == (HELLO_ANSWERED, "incomplete")
        assert response.usage is not None
        assert response.usage.output_tokens == 6

    async def test_streamed(self, up: Served) -> None:
        async with client_of(up) as client:
            async with client.responses.stream(model=MODEL, input="hello", max_output_tokens=6) as stream:
                events: list[Any] = [event async for event in stream]
        kinds = [event.type for event in events]
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert (kinds[-1], events[-1].response.status) == ("response.completed", "incomplete")
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == HELLO_ANSWERED
        numbers = [event.sequence_number for event in events]
        assert numbers == list(range(len(events)))

    async def test_one_follows_another(self, up: Served) -> None:
        async with client_of(up) as client:
            first = await self.ask(client)
            second = await self.ask(client, "and then?", previous_response_id=first.id)
            streamed = await client.responses.create(
                model=MODEL, input="so?", max_output_tokens=6, previous_response_id=second.id, stream=True
            )
            events: list[Any] = [event async for event in streamed]
            third = await self.ask(client, "well", previous_response_id=events[0].response.id)
        so_far = [("user", "hello"), ("assistant", HELLO_ANSWERED), ("user", "and then?")]
        assert second.output_text == expected(*so_far)
        so_far += [("assistant", second.output_text), ("user", "so?")]
        assert third.output_text == expected(*so_far, ("assistant", expected(*so_far)), ("user", "well"))

    async def test_they_are_looked_at_and_deleted_and_cannot_be_cancelled(self, up: Served) -> None:
        async with client_of(up) as client:
            made = await self.ask(client)
            found = await client.responses.retrieve(made.id)
            assert found.output_text == made.output_text
            with pytest.raises(openai.BadRequestError, match="Cannot cancel"):
                await client.responses.cancel(made.id)
            await client.responses.delete(made.id)
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(made.id)

    async def test_those_not_stored_are_not_known(self, up: Served) -> None:
        async with client_of(up) as client:
            made = await self.ask(client, store=False)
            with pytest.raises(openai.NotFoundError) as caught:
                await client.responses.retrieve(made.id)
        assert caught.value.code == "response_not_found"

    async def test_a_tool_is_called_and_its_answer_taken(self, up: Served) -> None:
        async with client_of(up) as client:
            asked = await self.ask(client, tools=[TOOL], tool_choice={"type": "function", "name": "weather"})
            whole = await client.responses.create(model=MODEL, input="hello", tools=[TOOL], tool_choice="required")
            async with client.responses.stream(
                model=MODEL,
                input="hello",
                tools=[TOOL],
                tool_choice="required",
            ) as stream:
                streamed = await stream.get_final_response()
            (call,) = streamed.output
            assert call.type == "function_call"
            output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
            answer = await client.responses.create(
                model=MODEL, input=[output], max_output_tokens=6, previous_response_id=whole.id
            )
        assert asked.output[0].type == whole.output[0].type == "function_call"
        assert set(json.loads(call.arguments)) == {"city", "days"}
        assert whole.output[0].arguments == call.arguments
        assert answer.output_text == expected(("user", "hello"), ("assistant", call.arguments), ("tool", "rain"))

    @pytest.mark.parametrize("more", [{"background": True}, {"conversation": "conv_1"}])
    async def test_what_cannot_be_promised_is_refused(self, up: Served, more: dict[str, Any]) -> None:
        async with client_of(up) as client:
            with pytest.raises(openai.BadRequestError) as caught:
                await self.ask(client, **more)
        assert (caught.value.code, caught.value.param) == ("unsupported_parameter", next(iter(more)))


async def test_a_stored_response_is_followed_where_it_was_made(tmp_path: Path, unused_tcp_port_factory: Ports) -> None:
    """The response was made in another region while home was busy; home is free later, and does not know the
    response.
    """
    async with FakeEngine().serving() as home:
        home.waiting = 1
        ports = unused_tcp_port_factory
        async with served(tmp_path, ports, across=True, engines=3, home_engine_urls=(home.url,)) as up:
            async with client_of(up) as client:
                made = await client.responses.create(model=MODEL, input="hello", max_output_tokens=6)
                home.waiting = 0
                await until(lambda: free_replicas(up.gateway) == 1)
                for _ in range(6):
                    assert (await client.responses.retrieve(made.id)).id == made.id
                    then = await client.responses.create(
                        model=MODEL, input="so?", max_output_tokens=6, previous_response_id=made.id
                    )
                    assert then.output_text == expected(
                        ("user", "hello"), ("assistant", made.output_text), ("user", "so?")
                    )
        assert home.received == []


async def test_no_tenant_reaches_another_s_response(tmp_path: Path, unused_tcp_port_factory: Ports) -> None:
    def trusting(config: GatewayConfig) -> GatewayConfig:
        return replace(config, trust_tenant_header=True)

    async with served(tmp_path, unused_tcp_port_factory, change=trusting) as up:
        async with (
            client_of(up, default_headers={"x-nightside-tenant": "acme"}) as acme,
            client_of(up, default_headers={"x-nightside-tenant": "other"}) as other,
        ):
            made = await acme.responses.create(model=MODEL, input="hello", max_output_tokens=6)
            for reach in (
                lambda: other.responses.retrieve(made.id),
                lambda: other.responses.cancel(made.id),
                lambda: other.responses.delete(made.id),
                lambda: other.responses.create(model=MODEL, input="so?", previous_response_id=made.id),
            ):
                with pytest.raises(openai.NotFoundError) as caught:
                    await reach()
                assert caught.value.code == "response_not_found"
            assert (await acme.responses.retrieve(made.id)).id == made.id


class TestOtherCalls:
    async def test_embeddings(self, up: Served) -> None:
        async with client_of(up) as client:
            packed = await client.embeddings.create(model=MODEL, input=["one", "two"])
            plain = await client.embeddings.create(model=MODEL, input="one", encoding_format="float")
        vector = embedding(MODEL, b"one", DIMENSIONS)
        assert packed.data[0].embedding == pytest.approx(vector, rel=1e-6)
        assert plain.data[0].embedding == vector
        assert (len(packed.data), packed.usage.prompt_tokens) == (2, 2)

    async def test_models(self, up: Served) -> None:
        async with client_of(up) as client:
            assert [model.id async for model in await client.models.list()] == [MODEL]
            assert (await client.models.retrieve(MODEL)).id == MODEL
            with pytest.raises(openai.NotFoundError) as caught:
                await client.models.retrieve("nope")
        assert caught.value.code == "model_not_found"


class TestErrors:
    async def test_each_has_its_type_its_code_and_its_request(self, up: Served) -> None:
        async with client_of(up) as client:
            with pytest.raises(openai.NotFoundError) as unknown:
                await client.chat.completions.create(model="nope", messages=HELLO)
            with pytest.raises(openai.BadRequestError) as too_long:
                await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=10**6)
            with pytest.raises(openai.BadRequestError) as reserved:
                await client.chat.completions.create(
                    model=MODEL,
                    messages=HELLO,
                    extra_body={"kv_transfer_params": {}},
                )
            with pytest.raises(openai.NotFoundError) as nowhere:
                await client.moderations.create(input="x")
        assert unknown.value.code == "model_not_found"
        assert too_long.value.param == "max_tokens"
        assert (reserved.value.code, reserved.value.param) == ("unsupported_parameter", "kv_transfer_params")
        assert nowhere.value.code == "not_found"
        assert all(caught.value.request_id for caught in (unknown, too_long, reserved, nowhere))

    async def test_an_engine_that_fails_is_a_502(self, tmp_path: Path, unused_tcp_port_factory: Ports) -> None:
        async with served(tmp_path, unused_tcp_port_factory) as up, client_of(up) as client:
            up.engines[0].set_fault(EngineFault(FaultMode.ERROR_500))
            with pytest.raises(openai.InternalServerError) as caught:
                await client.chat.completions.create(model=MODEL, messages=HELLO)
        assert (caught.value.status_code, caught.value.code) == (502, "engine_failed")

    @pytest.mark.parametrize("mode", [FaultMode.DIE_MIDSTREAM, FaultMode.ABORT_MIDSTREAM])
    async def test_a_stream_that_breaks_off_raises(self, slow_and_broken: Served, mode: FaultMode) -> None:
        """The engine is slow, so that a token reaches the client before the break."""
        slow_and_broken.engines[0].set_fault(EngineFault(mode))
        async with client_of(slow_and_broken) as client:
            chat = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
            with pytest.raises(openai.APIError) as of_chat:
                _ = [chunk async for chunk in chat]
            response = await client.responses.create(model=MODEL, input="hello", stream=True)
            with pytest.raises(openai.APIError) as of_responses:
                _ = [event async for event in response]
        assert of_chat.value.code == of_responses.value.code == "engine_failed_midstream"


class TestLeaving:
    """A token takes 90 ms here and 500 are requested: an answer that stops within the test was aborted."""

    async def test_a_stream_that_is_closed_ends_at_the_engine(self, slow: Served) -> None:
        async with client_of(slow) as client:
            chat = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=500, stream=True)
            async for _ in chat:
                break
            await slow.runs(1)
            await chat.close()
            await slow.runs(0)
            response = await client.responses.create(model=MODEL, input="hello", max_output_tokens=500, stream=True)
            async for event in response:
                if event.type == "response.output_text.delta":
                    break
            await slow.runs(1)
            await response.close()
            await slow.runs(0)

    @pytest.mark.parametrize("api", ["chat", "responses"])
    async def test_a_call_that_is_cancelled_ends_at_the_engine(self, slow: Served, api: str) -> None:
        async with client_of(slow) as client:
            asking: Coroutine[Any, Any, object]
            if api == "chat":
                asking = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=500)
            else:
                asking = client.responses.create(model=MODEL, input="hello", max_output_tokens=500)
            async with asyncio.TaskGroup() as tasks:
                asked = tasks.create_task(asking)
                await slow.runs(1)
                asked.cancel()
            await slow.runs(0)

    async def test_a_call_that_takes_too_long_for_its_client_ends_at_the_engine(self, slow: Served) -> None:
        async with client_of(slow, timeout=0.5) as client:
            with pytest.raises(openai.APITimeoutError):
                await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=500)
            await slow.runs(0)
