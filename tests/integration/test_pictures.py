"""Images from unmodified clients count by tokens, not by their data, in every count of a prompt's size."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import msgspec
import openai
import pytest
from msgspec.structs import replace

from gateway.app.gateway import serve_gateway
from gateway.config.content import ContentConfig
from gateway.config.sections import GatewayConfig
from gateway.core.kernel.config import PlacementPolicy
from gateway.records.decisions import Explanation
from gateway.security.keys_editing import add_key
from loadgen.engine.fields import MEDIA_TOKENS
from mesh.clock import Clock
from tests.fakes.engine import DONE, GOOD_ANSWER, ROLE, STOP, USAGE, FakeEngine, answer, stream_until, token
from tests.support.core import MODEL, US, under
from tests.support.gateways import free_replicas, region_config, until, write_policy
from tests.support.served import HELLO, Ports, Served, served

BLOCK_BYTES = 256
PICTURES = [base64.b64encode(random.Random(number).randbytes(562_500)).decode() for number in range(4)]
"""Images of 750 kB each in base64."""


def pictured(data: str) -> Any:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    return [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]}]


def new_key(folder: Path, **options: Any) -> str:
    return add_key(folder / "keys.yaml", "a", {"tenant": "acme", **options}, Clock().wall_ns(), may_be_missing=True).key


def with_keys(folder: Path) -> Callable[[GatewayConfig], GatewayConfig]:
    def change(config: GatewayConfig) -> GatewayConfig:
        return replace(config, keys_file=folder / "keys.yaml", core=under(PlacementPolicy.COST))

    return change


async def explained(up: Served, session: aiohttp.ClientSession, decision: str) -> Any:
    async with session.get(f"{up.gateway.admin_url}/admin/explain/{decision}") as response:
        (placement,) = msgspec.json.decode(await response.read(), type=Explanation).here.placements
        return placement


async def test_pictures_in_parallel_go_through_a_key_s_minute_by_their_tokens(
    tmp_path: Path, unused_tcp_port_factory: Ports, session: aiohttp.ClientSession
) -> None:
    """Each would be 187,500 tokens as text: more than the key's limit, for a model that takes 4,096."""
    key = new_key(tmp_path, tokens_per_minute=20_000)
    async with served(tmp_path, unused_tcp_port_factory, change=with_keys(tmp_path)) as up:
        async with openai.AsyncOpenAI(base_url=up.openai_url, api_key=key, max_retries=0) as client:

            async def ask(data: str) -> Any:
                create = client.chat.completions.with_raw_response.create
                return await create(model=MODEL, messages=pictured(data), max_tokens=6)

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(ask(data)) for data in PICTURES]
            answers = [task.result() for task in tasks]
        usages = [each.parse().usage for each in answers]
        assert [MEDIA_TOKENS < usage.prompt_tokens < MEDIA_TOKENS + 20 for usage in usages] == [True] * 4
        left = int(answers[-1].headers["x-ratelimit-remaining-tokens"])
        assert 20_000 - 4 * (MEDIA_TOKENS + 40) - 4096 < left < 20_000
        placement = await explained(up, session, answers[0].headers["x-nightside-decision"])
        assert placement.prompt_blocks == pytest.approx(4 * MEDIA_TOKENS / BLOCK_BYTES, rel=0.2)
        assert placement.considered[0].costs.reading < 100


async def test_every_api_s_pictures_count_by_tokens(tmp_path: Path, unused_tcp_port_factory: Ports) -> None:
    key = new_key(tmp_path, tokens_per_minute=3_000)
    source: Any = {"type": "base64", "media_type": "image/png", "data": PICTURES[0]}
    block: Any = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    url = f"data:image/png;base64,{PICTURES[1]}"
    given: Any = [{"role": "user", "content": [{"type": "input_image", "image_url": url, "detail": "auto"}]}]
    async with served(tmp_path, unused_tcp_port_factory, change=with_keys(tmp_path)) as up:
        async with anthropic.AsyncAnthropic(base_url=up.url, api_key=key, max_retries=0) as asking:
            message = await asking.messages.create(model=MODEL, messages=block, max_tokens=6)
            assert message.usage.input_tokens == pytest.approx(MEDIA_TOKENS, abs=20)
        async with openai.AsyncOpenAI(base_url=up.openai_url, api_key=key, max_retries=0) as client:
            response = await client.responses.create(model=MODEL, input=given, max_output_tokens=6)
            assert response.usage is not None
            assert response.usage.input_tokens == pytest.approx(MEDIA_TOKENS, abs=20)


@pytest.fixture
async def refusing(tmp_path: Path, engine: FakeEngine) -> AsyncIterator[tuple[Served, str]]:
    """A gateway whose key has a hundred thousand tokens a minute."""
    key = new_key(tmp_path, tokens_per_minute=100_000)
    config = region_config("us-1", US, [engine.url], policy_file=write_policy(tmp_path, US))
    config = with_keys(tmp_path)(replace(config, content=ContentConfig(image_tokens=2000)))
    async with serve_gateway(config) as gateway:
        await until(lambda: free_replicas(gateway) == 1)
        yield Served(gateway, [], [gateway]), key


async def test_what_an_engine_refused_is_not_in_the_index(
    refusing: tuple[Served, str], engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    up, key = refusing
    engine.plays(answer(400, b'{"error":{"message":"at most 0 images"}}'))
    async with openai.AsyncOpenAI(base_url=up.openai_url, api_key=key, max_retries=0) as client:
        for _ in range(2):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(model=MODEL, messages=pictured(PICTURES[0]))
            placement = await explained(up, session, caught.value.response.headers["x-nightside-decision"])
            assert (placement.matched_blocks, placement.prompt_blocks) == (0, 31)
    assert up.gateway.core.placer.replica_index.blocks == 0


async def test_what_engines_count_is_what_pictures_come_to(
    refusing: tuple[Served, str], engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    """The config's assumption counts until the first usage is reported."""
    up, key = refusing
    counted = GOOD_ANSWER.replace(b'"prompt_tokens": 22', b'"prompt_tokens": 6000')
    engine.plays(answer(200, counted), answer(200, counted))
    blocks = []
    async with openai.AsyncOpenAI(base_url=up.openai_url, api_key=key, max_retries=0) as client:
        for data in PICTURES[:2]:
            create = client.chat.completions.with_raw_response.create
            raw = await create(model=MODEL, messages=pictured(data), max_tokens=6)
            placement = await explained(up, session, raw.headers["x-nightside-decision"])
            blocks.append(placement.prompt_blocks * BLOCK_BYTES / 4)
    assert blocks == [pytest.approx(2000, rel=0.1), pytest.approx(6000, rel=0.1)]


async def test_a_request_that_could_pass_when_a_running_one_ends_is_not_told_to_wait_a_minute(
    refusing: tuple[Served, str], engine: FakeEngine
) -> None:
    up, key = refusing
    end = asyncio.Event()
    engine.plays(stream_until(end, (ROLE, token("Hello")), (STOP, USAGE, DONE)))
    asked: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 90_000, "stream": True}
    async with openai.AsyncOpenAI(base_url=up.openai_url, api_key=key, max_retries=0) as client:
        running = await client.chat.completions.create(**asked)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(**asked)
        assert caught.value.response.headers["retry-after-ms"] == "1000"
        end.set()
        assert [chunk async for chunk in running]
        again = await client.with_options(max_retries=2).chat.completions.create(**asked)
        assert [chunk async for chunk in again]
