from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from openai import AsyncOpenAI

from loadgen.engine.faults import EngineFault, FaultMode
from loadgen.engine.presets import TINY
from loadgen.engine.server import EngineServer, EngineServerConfig, serve_engines
from loadgen.engine.tokens import PromptMessage, chat_prompt, continuation, token_count

CONFIG = EngineServerConfig(model="m", engine=TINY, adapters=("tuned",), time_scale=0.05, ignore_eos=True)
SLOW = replace(CONFIG, time_scale=20.0)
"""Engine whose token takes at least 80 ms: a `long_chat` on it is still running when the test continues."""


@asynccontextmanager
async def engine(config: EngineServerConfig = CONFIG) -> AsyncIterator[tuple[EngineServer, aiohttp.ClientSession]]:
    async with serve_engines([config]) as (server,), aiohttp.ClientSession(server.url) as session:
        yield server, session


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 6} | fields


def long_chat(**fields: Any) -> dict[str, Any]:
    return chat(max_tokens=500, **fields)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - an engine's inner state has no event to wait for
        await asyncio.sleep(0.002)


def said(body: str) -> str:
    """Text of a chat stream."""
    chunks = [json.loads(event.removeprefix("data: ")) for event in body.split("\n\n")[:-2]]
    return "".join(choice["delta"]["content"] for chunk in chunks for choice in chunk["choices"])


def expected(text: str = "hello", tokens: int = 6, model: str = "m") -> str:
    return continuation(model, chat_prompt([PromptMessage("user", text)]), tokens).decode()


async def test_a_stream_is_whole() -> None:
    async with engine() as (_, session):
        async with session.post("/v1/chat/completions", json=chat(stream=True)) as response:
            body = await response.text()

    assert response.status == 200
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert said(body) == expected()
    assert body.endswith("data: [DONE]\n\n")


async def test_tokens_come_while_the_answer_is_being_generated() -> None:
    async with engine(SLOW) as (server, session):
        async with session.post("/v1/chat/completions", json=long_chat(stream=True)) as response:
            for _role_first_and_second_token in range(3):
                await response.content.readuntil(b"\n\n")
            assert server.load().running == 1


async def test_the_official_client_streams() -> None:
    async with engine() as (server, _):
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            stream = await client.chat.completions.create(
                model="tuned",
                messages=[{"role": "user", "content": "hello"}],
                max_completion_tokens=6,
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [chunk async for chunk in stream]
            models = [model.id async for model in client.models.list()]
            whole = await client.completions.create(model="m", prompt="once upon", max_tokens=5)

    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == expected(model="tuned")
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6
    assert models == ["m", "tuned"]
    assert whole.choices[0].text == continuation("m", b"once upon", 5).decode()


async def test_a_request_id_names_the_answer() -> None:
    headers = {"X-Request-Id": "gw-req-123"}
    async with engine() as (_, session):
        async with session.post("/v1/chat/completions", json=chat(), headers=headers) as response:
            chat_id = (await response.json())["id"]
        completion = {"model": "m", "prompt": [1, 2, 3]}
        async with session.post("/v1/completions", json=completion, headers=headers) as response:
            completion_id = (await response.json())["id"]
        async with session.post("/v1/chat/completions", json=chat()) as response:
            own_id = (await response.json())["id"]

    assert (chat_id, completion_id) == ("chatcmpl-gw-req-123", "cmpl-gw-req-123")
    assert own_id.startswith("chatcmpl-")
    assert len(own_id) == len("chatcmpl-") + 16


async def test_one_id_may_be_in_flight_twice() -> None:
    headers = {"X-Request-Id": "twin"}
    async with engine(SLOW) as (server, session):
        async with session.post("/v1/chat/completions", json=long_chat(stream=True), headers=headers):
            async with session.post("/v1/chat/completions", json=long_chat(stream=True), headers=headers):
                await until(lambda: server.load().running + server.load().arriving == 2)


async def test_the_next_turn_of_a_conversation_finds_its_history_cached() -> None:
    question = "tell me a story " * 20
    async with engine() as (_, session):
        async with session.post("/v1/chat/completions", json=chat(question, max_tokens=40)) as response:
            first = await response.json()
        reply = first["choices"][0]["message"]
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": reply["content"]}]
        next_turn = chat() | {"messages": [*messages, {"role": "user", "content": "go on"}]}
        async with session.post("/v1/chat/completions", json=next_turn) as response:
            usage = (await response.json())["usage"]
        async with session.post("/v1/chat/completions", json=next_turn | {"model": "tuned"}) as response:
            of_the_adapter = (await response.json())["usage"]
        async with session.post("/v1/chat/completions", json=next_turn | {"cache_salt": "mine"}) as response:
            salted = (await response.json())["usage"]

    history_tokens = first["usage"]["total_tokens"] - 1
    assert usage["prompt_tokens_details"]["cached_tokens"] == history_tokens // 16 * 16
    assert of_the_adapter["prompt_tokens_details"]["cached_tokens"] == 0
    assert salted["prompt_tokens_details"]["cached_tokens"] == 0


async def answered(url: str, request: dict[str, Any]) -> tuple[int, str]:
    """Tokens and finish reason of an answer that is not streamed."""
    async with aiohttp.ClientSession(url) as session:
        body = json.loads(await body_of(session, request))
    return body["usage"]["completion_tokens"], body["choices"][0]["finish_reason"]


async def test_lengths_are_drawn_from_the_prompt_unless_eos_is_ignored() -> None:
    config = replace(CONFIG, ignore_eos=False, output_tokens_median=20)
    async with serve_engines([config, config, replace(config, seed=1)]) as (one, other, reseeded):
        tokens, reason = await answered(one.url, chat("a", max_tokens=2000))
        assert reason == "stop"
        assert await answered(other.url, chat("a", max_tokens=2000)) == (tokens, "stop")
        assert await answered(reseeded.url, chat("a", max_tokens=2000)) != (tokens, "stop")
        assert await answered(one.url, chat("b", max_tokens=2000)) != (tokens, "stop")
        assert await answered(one.url, chat("a", max_tokens=tokens)) == (tokens, "stop")
        assert await answered(one.url, chat("a", max_tokens=tokens - 1)) == (tokens - 1, "length")
        assert await answered(one.url, chat("a", max_tokens=tokens + 9, ignore_eos=True)) == (tokens + 9, "length")
        assert await answered(one.url, chat("a", max_tokens=2000, min_tokens=tokens + 5)) == (tokens + 5, "stop")


async def test_without_a_limit_a_chat_may_fill_the_context() -> None:
    config = replace(CONFIG, engine=replace(TINY, context_tokens_max=100), time_scale=0.01)
    async with engine(config) as (_, session):
        async with session.post("/v1/chat/completions", json=chat(max_tokens=None)) as response:
            usage = (await response.json())["usage"]

    assert usage["prompt_tokens"] == token_count(chat_prompt([PromptMessage("user", "hello")]))
    assert usage["total_tokens"] == 100


@pytest.mark.parametrize("stream", [True, False])
async def test_closing_the_connection_aborts(stream: bool) -> None:
    async with engine(replace(SLOW, engine=replace(TINY, sequences_max=1))) as (server, session):
        async with asyncio.TaskGroup() as clients:
            tasks = [clients.create_task(body_of(session, long_chat(stream=stream))) for _ in range(3)]
            await until(lambda: server.load().running == 1 and server.load().waiting + server.load().arriving == 2)
            for task in tasks:
                task.cancel()
        await until(lambda: server.load().running + server.load().waiting + server.load().arriving == 0)

        assert server.load().blocks_held == 0
        assert server.load().finished == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_full_queue_answers_busy(stream: bool) -> None:
    config = replace(SLOW, engine=replace(TINY, sequences_max=1, queued_requests_max=1))
    async with engine(config) as (server, session):
        async with session.post("/v1/chat/completions", json=long_chat(stream=True)):
            await until(lambda: server.load().running == 1)
            async with session.post("/v1/chat/completions", json=long_chat(stream=True)):
                async with session.post("/v1/chat/completions", json=long_chat(stream=stream)) as refused:
                    body = await refused.text()

    message = "The engine is currently busy and cannot accept new requests. Please try again later or on a different "
    error = {"message": message + "instance.", "type": "Service Unavailable", "param": None, "code": 503}
    if stream:
        assert refused.status == 200
        assert body == f"data: {json.dumps({'error': error})}\n\ndata: [DONE]\n\n"
    else:
        assert (refused.status, json.loads(body)) == (503, {"error": error})
        assert "Retry-After" not in refused.headers


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stopping_engine_ends_its_answers_with_abort(stream: bool) -> None:
    async with serve_engines([SLOW]) as (server,):
        async with aiohttp.ClientSession(server.url) as session, asyncio.TaskGroup() as clients:
            answer = clients.create_task(body_of(session, long_chat(stream=stream)))
            await until(lambda: server.load().running == 1)
            await server.stop()

    body = answer.result()
    if stream:
        *_, last, done, end = body.split("\n\n")
        assert json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"] == "abort"
        assert (done, end) == ("data: [DONE]", "")
    else:
        assert json.loads(body)["choices"][0]["finish_reason"] == "abort"


async def body_of(session: aiohttp.ClientSession, request: dict[str, Any]) -> str:
    async with session.post("/v1/chat/completions", json=request) as response:
        return await response.text()


@pytest.mark.parametrize(("mode", "status"), [(FaultMode.ERROR_500, 500), (FaultMode.ERROR_503, 503)])
async def test_fault_errors_come_with_their_status(mode: FaultMode, status: int) -> None:
    async with engine() as (server, session):
        server.set_fault(EngineFault(mode, times=1))
        async with session.post("/v1/chat/completions", json=chat(stream=True)) as response:
            assert response.status == status
            assert (await response.json())["error"]["code"] == status
        async with session.post("/v1/chat/completions", json=chat(stream=True)) as response:
            assert response.status == 200


async def test_fault_error_event_first() -> None:
    async with engine() as (server, session):
        server.set_fault(EngineFault(FaultMode.ERROR_EVENT_FIRST))
        async with session.post("/v1/chat/completions", json=chat(stream=True)) as response:
            body = await response.text()

    first, done, _ = body.split("\n\n")
    assert response.status == 200
    assert json.loads(first.removeprefix("data: "))["error"]["code"] == 500
    assert done == "data: [DONE]"


async def test_fault_empty_stream() -> None:
    async with engine() as (server, session):
        server.set_fault(EngineFault(FaultMode.EMPTY_STREAM))
        async with session.post("/v1/chat/completions", json=chat(stream=True)) as response:
            assert (response.status, await response.text()) == (200, "data: [DONE]\n\n")


async def test_fault_abort_midstream() -> None:
    async with engine() as (server, session):
        server.set_fault(EngineFault(FaultMode.ABORT_MIDSTREAM, after_tokens=2))
        body = await body_of(session, chat(stream=True))

    assert said(body) == expected(tokens=2)
    assert '"finish_reason":"abort"' in body


async def read_until_broken(response: aiohttp.ClientResponse) -> bytes:
    received = b""
    try:
        async for piece in response.content.iter_any():
            received += piece
    except aiohttp.ClientError:
        return received
    raise AssertionError("the stream ended well")


async def test_fault_die_midstream() -> None:
    async with engine() as (server, session):
        server.set_fault(EngineFault(FaultMode.DIE_MIDSTREAM, after_tokens=2))
        async with session.post("/v1/chat/completions", json=chat(stream=True)) as response:
            received = await read_until_broken(response)
        await until(lambda: server.load().running == 0)

    assert response.status == 200
    assert said(received.decode() + "data: [DONE]\n\n") == expected(tokens=2)


async def test_fault_hang_before_headers() -> None:
    async with engine() as (server, session):
        server.set_fault(EngineFault(FaultMode.HANG_BEFORE_HEADERS))
        request = session.post(
            "/v1/chat/completions", json=chat(stream=True), timeout=aiohttp.ClientTimeout(total=0.05)
        )
        with pytest.raises(TimeoutError):
            await request
        async with session.get("/health") as response:
            assert response.status == 200


async def test_fault_hang_after_headers() -> None:
    async with engine() as (server, session):
        server.set_fault(EngineFault(FaultMode.HANG_AFTER_HEADERS))
        async with session.post("/v1/chat/completions", json=chat(stream=True)) as response:
            assert response.status == 200
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await response.content.readany()
