"""Comments that keep a stream's connection alive while its request waits: what clients see, and what they lose."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import pytest
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.sections import LimitsConfig
from gateway.core.config import CoreConfig
from gateway.core.kernel.config import AttemptConfig, QueueConfig
from tests.fakes.engine import (
    GOOD_ANSWER,
    GOOD_MESSAGE_STREAM,
    GOOD_STREAM,
    Exchange,
    FakeEngine,
    Script,
    answer,
    hang,
    stream,
)
from tests.support.core import MODEL, MS, US
from tests.support.gateways import ask, free_replicas, region_config, until, write_policy
from tests.support.served import HELLO

COMMENT = b": the request waits\n\n"
ONE_MS = LimitsConfig(keep_alive_comments_ns=MS)


def after(gate: asyncio.Event, script: Script) -> Script:
    async def wait(exchange: Exchange) -> None:
        await gate.wait()
        await script(exchange)

    return wait


@asynccontextmanager
async def gateway(folder: Path, *engines: FakeEngine, **changes: Any) -> AsyncIterator[GatewayHandle]:
    config = region_config("us-1", US, [each.url for each in engines], policy_file=write_policy(folder, US))
    async with serve_gateway(replace(config, **{"limits": ONE_MS, **changes})) as made:
        await until(lambda: free_replicas(made) == len(engines))
        yield made


async def comment(response: aiohttp.ClientResponse) -> None:
    """Wait for a comment."""
    assert await response.content.readexactly(len(COMMENT)) == COMMENT


def without_comments(body: bytes) -> bytes:
    while body.startswith(COMMENT):
        body = body.removeprefix(COMMENT)
    return body


class TestStreams:
    async def test_comments_come_until_the_answer_does(
        self, engine: FakeEngine, tmp_path: Path, session: aiohttp.ClientSession
    ) -> None:
        gate = asyncio.Event()
        engine.plays(after(gate, stream(*GOOD_STREAM)))
        async with gateway(tmp_path, engine) as up, ask(session, up.http_url) as response:
            assert (response.status, response.content_type) == (200, "text/event-stream")
            assert response.headers["x-request-id"]
            await comment(response)
            await comment(response)
            gate.set()
            assert without_comments(await response.read()) == b"".join(GOOD_STREAM)

    async def test_the_sdks_that_people_use_read_past_them(self, engine: FakeEngine, tmp_path: Path) -> None:
        gates = asyncio.Event(), asyncio.Event()
        engine.plays(after(gates[0], stream(*GOOD_STREAM)), after(gates[1], stream(*GOOD_MESSAGE_STREAM)))
        async with gateway(tmp_path, engine) as up:
            async with openai.AsyncOpenAI(base_url=f"{up.http_url}/v1", api_key="client") as client:
                chunks = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
                gates[0].set()
                said = [choice.delta.content or "" async for chunk in chunks for choice in chunk.choices]
            async with anthropic.AsyncAnthropic(base_url=up.http_url, api_key="client") as claude:
                events = await claude.messages.create(model=MODEL, messages=HELLO, max_tokens=6, stream=True)
                gates[1].set()
                kinds = [event.type async for event in events]
        assert "".join(said) == "Hello world"
        assert kinds[-1] == "message_stop"

    async def test_a_retry_is_still_possible(
        self, engine: FakeEngine, tmp_path: Path, session: aiohttp.ClientSession
    ) -> None:
        """The engine fails after comments have been sent: another one answers."""
        gate = asyncio.Event()
        engine.plays(after(gate, answer(500)), stream(*GOOD_STREAM))
        async with gateway(tmp_path, engine) as up, ask(session, up.http_url) as response:
            await comment(response)
            gate.set()
            assert without_comments(await response.read()) == b"".join(GOOD_STREAM)
        assert len(engine.received) == 2


class TestErrors:
    async def told(self, folder: Path, engine: FakeEngine, script: Script, **changes: Any) -> openai.APIError:
        gate = asyncio.Event()
        engine.plays(after(gate, script))
        async with gateway(folder, engine, **changes) as up:
            async with openai.AsyncOpenAI(base_url=f"{up.http_url}/v1", api_key="client", max_retries=0) as client:
                stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
                gate.set()
                with pytest.raises(openai.APIError) as caught:
                    async for _ in stream:
                        pass
        return caught.value

    async def test_what_an_engine_refuses_comes_as_an_event(self, engine: FakeEngine, tmp_path: Path) -> None:
        body = json.dumps({"error": {"message": "too\nlong", "type": "t", "param": None, "code": 400}}, indent=1)
        error = await self.told(tmp_path, engine, answer(400, body.encode()))
        assert (error.message, str(error.code)) == ("too\nlong", "400")

    async def test_so_does_what_failed_for_good(self, engine: FakeEngine, tmp_path: Path) -> None:
        once = CoreConfig(attempt=AttemptConfig(attempts_max=1))
        assert (await self.told(tmp_path, engine, answer(500), core=once)).code == "engine_failed"

    async def test_and_a_wait_that_was_too_long(self, engine: FakeEngine, tmp_path: Path) -> None:
        engine.waiting = 1
        core = CoreConfig(queue=QueueConfig(wait_max_ns=300 * MS))
        config = region_config("us-1", US, [engine.url], policy_file=write_policy(tmp_path, US))
        config = replace(config, limits=ONE_MS, core=replace(core, placement=config.core.placement))
        async with serve_gateway(config) as up:
            await until(lambda: up.core.replicas.reachable.bit_count() == 1)
            async with openai.AsyncOpenAI(base_url=f"{up.http_url}/v1", api_key="c", max_retries=0) as client:
                stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
                with pytest.raises(openai.APIError) as caught:
                    async for _ in stream:
                        pass
        assert caught.value.code == "queue_timeout"

    async def test_an_answer_in_one_piece_is_no_stream(self, engine: FakeEngine, tmp_path: Path) -> None:
        error = await self.told(tmp_path, engine, answer(200, GOOD_ANSWER))
        assert error.code in ("engine_failed_midstream", "engine_failed")


class TestNothingIsSentEarly:
    async def test_to_who_asked_for_no_stream(
        self, engine: FakeEngine, tmp_path: Path, session: aiohttp.ClientSession
    ) -> None:
        engine.plays(answer(400, b'{"error": {"message": "no", "type": "t", "param": null, "code": 400}}'))
        async with gateway(tmp_path, engine) as up, ask(session, up.http_url, stream=False) as response:
            assert response.status == 400

    async def test_unless_the_region_file_says_so(
        self, engine: FakeEngine, tmp_path: Path, session: aiohttp.ClientSession
    ) -> None:
        engine.plays(hang)
        deadline = replace(ONE_MS, keep_alive_comments_ns=None, request_deadline_ns=300 * MS)
        async with gateway(tmp_path, engine, limits=deadline) as up, ask(session, up.http_url) as response:
            assert response.status == 504

    async def test_a_client_that_leaves_meanwhile_is_noticed(
        self, engine: FakeEngine, tmp_path: Path, session: aiohttp.ClientSession
    ) -> None:
        engine.plays(hang)
        async with gateway(tmp_path, engine) as up:
            async with ask(session, up.http_url) as response:
                await comment(response)
                await engine.arrived.reaches(1)
                response.close()
            await engine.aborted.reaches(1)
