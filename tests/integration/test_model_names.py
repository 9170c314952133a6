"""Further names for models over real sockets: the model that each name leads to, and the name in the client's
answer.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import pytest
from msgspec.structs import replace

from gateway.config.sections import GatewayConfig
from gateway.core.vocabulary import ModelName
from gateway.security.keys import mint
from tests.support.core import MODEL, TENANT
from tests.support.gateways import until
from tests.support.served import HELLO, HELLO_ANSWERED, Served, served

ASKED = ModelName("gpt-4o")
ALIASES = {ASKED: (ModelName("not-here"), MODEL), ModelName("nothing"): (ModelName("not-here"),)}


def with_aliases(config: GatewayConfig) -> GatewayConfig:
    return replace(config, models=ALIASES)


@pytest.fixture
async def named(tmp_path: Path, unused_tcp_port_factory: Callable[[], int], across: bool) -> AsyncIterator[Served]:
    """Only the gateway that the client calls needs to know the name."""
    async with served(tmp_path, unused_tcp_port_factory, across=across, change=with_aliases) as made:
        yield made


@pytest.fixture
async def client(named: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=named.openai_url, api_key="client", max_retries=0) as made:
        yield made


class TestAnswersNameWhatWasAsked:
    async def test_whole(self, client: openai.AsyncOpenAI) -> None:
        raw = await client.chat.completions.with_raw_response.create(model=ASKED, messages=HELLO, max_tokens=6)
        answer = raw.parse()
        assert (answer.model, answer.choices[0].message.content) == (ASKED, HELLO_ANSWERED)
        assert raw.headers["x-nightside-model"] == MODEL

    async def test_streamed(self, client: openai.AsyncOpenAI) -> None:
        stream = await client.chat.completions.create(model=ASKED, messages=HELLO, max_tokens=6, stream=True)
        chunks = [chunk async for chunk in stream]
        assert {chunk.model for chunk in chunks} == {ASKED}
        assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == HELLO_ANSWERED

    async def test_responses_and_what_follows_them(self, client: openai.AsyncOpenAI) -> None:
        first = await client.responses.create(model=ASKED, input="hello", max_output_tokens=6)
        stream = await client.responses.create(
            model=ASKED, input="more", previous_response_id=first.id, max_output_tokens=6, stream=True
        )
        told = [
            event.response.model async for event in stream if event.type in ("response.created", "response.completed")
        ]
        assert (first.model, told) == (ASKED, [ASKED, ASKED])

    async def test_in_anthropic_s_dialect(self, named: Served) -> None:
        asked: Any = {"model": ASKED, "messages": HELLO, "max_tokens": 6}
        async with anthropic.AsyncAnthropic(base_url=named.url, api_key="client", max_retries=0) as claude:
            assert (await claude.messages.create(**asked)).model == ASKED
            async with claude.messages.stream(**asked) as stream:
                assert (await stream.get_final_message()).model == ASKED


class TestWhichNamesThereAre:
    async def test_a_name_is_listed_where_something_it_stands_for_is_served(self, client: openai.AsyncOpenAI) -> None:
        assert [model.id async for model in client.models.list()] == [MODEL, ASKED]
        assert (await client.models.retrieve(ASKED)).id == ASKED

    async def test_one_that_stands_for_nothing_is_refused_by_that_name(self, client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.NotFoundError, match="the model `nothing` does not exist"):
            await client.chat.completions.create(model="nothing", messages=HELLO)


class TestKeys:
    async def test_a_key_may_name_either(
        self, tmp_path: Path, unused_tcp_port_factory: Callable[[], int], across: bool, session: aiohttp.ClientSession
    ) -> None:
        by_models: dict[str, list[str]] = {"alias": [ASKED], "model": [MODEL], "other": ["not-here"]}
        secrets = {name: mint(name) for name in by_models}
        entries = [
            {"id": name, "hash": str(kept), "tenant": "acme", "models": by_models[name]}
            for name, (_, kept) in secrets.items()
        ]
        keys_file = tmp_path / "keys.yaml"
        keys_file.write_text(json.dumps({"version": 1, "keys": entries}))

        def change(config: GatewayConfig) -> GatewayConfig:
            return replace(with_aliases(config), keys_file=keys_file)

        async def status(key: str, model: str) -> int:
            asked = session.post(
                f"{up.openai_url}/chat/completions",
                json={"model": model, "messages": HELLO, "max_tokens": 2},
                headers={"authorization": f"Bearer {secrets[key][0]}"},
            )
            async with asked as response:
                return response.status

        async with served(tmp_path, unused_tcp_port_factory, across=across, change=change) as up:
            found = {(key, model): await status(key, model) for key in by_models for model in (ASKED, MODEL)}
        assert found == {
            ("alias", ASKED): 200,
            ("alias", MODEL): 404,
            ("model", ASKED): 200,
            ("model", MODEL): 200,
            ("other", ASKED): 404,
            ("other", MODEL): 404,
        }


async def test_a_fallback_is_taken_once_nobody_serves_what_comes_before(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int], session: aiohttp.ClientSession
) -> None:
    """The engine with the first model is stopped: later requests go to the second."""
    second = ModelName("second")

    def change(config: GatewayConfig) -> GatewayConfig:
        first, other = config.replicas
        other = replace(other, spec=replace(other.spec, models=(second,)))
        return replace(config, replicas=(first, other), models={ASKED: (MODEL, second)})

    async def resolved(url: str) -> str:
        body = {"model": ASKED, "messages": HELLO, "max_tokens": 2}
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            return response.headers.get("x-nightside-model", "")

    async with served(tmp_path, unused_tcp_port_factory, engines=2, change=change) as up:
        assert await resolved(up.url) == MODEL
        await up.engines[0].stop()
        await until(lambda: up.gateway.core.replicas.reachable.bit_count() == 1)
        assert up.gateway.core.first_served((MODEL, second), TENANT, None, "") == second
