from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from loadgen.engine.presets import TINY
from loadgen.engine.server import EngineServer, EngineServerConfig, serve_engines
from tests.support.metrics_pages import sums_by_name

CONFIG = EngineServerConfig(
    model="m", engine=TINY, adapters=("tuned",), time_scale=0.05, ignore_eos=True, faults=True, body_bytes_max=10_000
)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 6}


@asynccontextmanager
async def engine(config: EngineServerConfig = CONFIG) -> AsyncIterator[tuple[EngineServer, aiohttp.ClientSession]]:
    async with serve_engines([config]) as (server,), aiohttp.ClientSession(server.url) as session:
        yield server, session


async def metrics(session: aiohttp.ClientSession) -> dict[str, float]:
    """Sums of the samples by name."""
    async with session.get("/metrics") as response:
        assert response.headers["Content-Type"] == "text/plain; version=1.0.0; charset=utf-8"
        return sums_by_name(await response.text())


async def order(session: aiohttp.ClientSession, **fault: Any) -> int:
    async with session.post("/faults", json=fault) as response:
        return response.status


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/health", ""),
        ("GET", "/ping", ""),
        ("POST", "/ping", ""),
        ("GET", "/version", '{"version":"0.32.0"}'),
        ("GET", "/load", '{"server_load":0}'),
    ],
)
async def test_operational_endpoints(method: str, path: str, body: str) -> None:
    async with engine() as (_, session), session.request(method, path) as response:
        assert (response.status, await response.text()) == (200, body)


@pytest.mark.parametrize("path", ["/v1/chat/completions/render", "/v1/completions/render"])
async def test_prompts_are_rendered_for_nobody_as_vllm_says_it(path: str) -> None:
    async with engine() as (_, session), session.post(path, json=CHAT) as response:
        assert response.status == 403
        assert await response.json() == {
            "error": {
                "message": "Scale-out endpoints are disabled. "
                "Restart vllm serve with --enable-scale-out to enable them.",
                "type": "PermissionDeniedError",
                "param": None,
                "code": 403,
            }
        }


async def test_models_list_adapters_under_their_parent() -> None:
    async with engine() as (_, session), session.get("/v1/models") as response:
        listing = await response.json()

    base, tuned = listing["data"]
    assert listing["object"] == "list"
    assert list(base) == ["id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"]
    assert (base["id"], base["parent"], base["max_model_len"]) == ("m", None, 4096)
    assert (tuned["id"], tuned["parent"]) == ("tuned", "m")
    assert base["permission"][0]["object"] == "model_permission"


async def test_metrics_follow_the_work() -> None:
    async with engine() as (_, session):
        before = await metrics(session)
        async with session.post("/v1/chat/completions", json=CHAT) as response:
            usage = (await response.json())["usage"]
        after = await metrics(session)

    assert before["vllm:generation_tokens_total"] == 0
    assert after["vllm:generation_tokens_total"] == 6
    assert after["vllm:prompt_tokens_total"] == usage["prompt_tokens"]
    assert after["vllm:request_success_total"] == 1
    assert after["vllm:num_requests_running"] == 0
    assert after["vllm:time_to_first_token_seconds_count"] == 1


async def test_load_counts_requests_in_flight() -> None:
    async with engine(replace(CONFIG, time_scale=20.0)) as (_, session):
        async with session.post("/v1/chat/completions", json=CHAT | {"stream": True}):
            assert await server_load(session) == 1


async def test_load_forgets_requests_that_ended() -> None:
    async with engine() as (_, session):
        async with session.post("/v1/chat/completions", json=CHAT) as response:
            await response.read()
        async with session.post("/v1/chat/completions", json=CHAT | {"model": "nope"}) as response:
            await response.read()
        assert await server_load(session) == 0


async def server_load(session: aiohttp.ClientSession) -> int:
    async with session.get("/load") as response:
        load: int = (await response.json())["server_load"]
    return load


async def test_errors_have_vllms_shape() -> None:
    async with engine() as (_, session):
        async with session.post("/v1/chat/completions", json=CHAT | {"model": "nope", "stream": True}) as response:
            assert response.status == 404
            assert await response.text() == (
                '{"error":{"message":"The model `nope` does not exist. Valid aliases: m, tuned.",'
                '"type":"NotFoundError","param":"model","code":404}}'
            )
        async with session.get("/nowhere") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (404, 404)
        async with session.get("/v1/chat/completions") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (405, 405)
        long = CHAT | {"messages": [{"role": "user", "content": "x" * 20_000}]}
        async with session.post("/v1/chat/completions", json=long) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (413, 413)


async def test_engines_have_ports_of_their_own() -> None:
    async with serve_engines([CONFIG, replace(CONFIG, model="n")]) as servers, aiohttp.ClientSession() as session:
        models = []
        for server in servers:
            async with session.get(f"{server.url}/v1/models") as response:
                models.append((await response.json())["data"][0]["id"])

    assert models == ["m", "n"]
    assert servers[0].config.model == "m"


async def test_after_the_context_nobody_listens() -> None:
    async with serve_engines([CONFIG]) as (server,):
        url = server.url
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(f"{url}/health")


async def test_faults_can_be_ordered_over_http() -> None:
    async with engine() as (_, session):
        assert await order(session, mode="error_500") == 200
        async with session.post("/v1/chat/completions", json=CHAT) as response:
            assert response.status == 500
        assert await order(session, mode="none") == 200
        async with session.post("/v1/chat/completions", json=CHAT) as response:
            assert response.status == 200
        assert await order(session, mode="nap") == 400


async def test_without_the_switch_there_are_no_faults() -> None:
    async with engine(replace(CONFIG, faults=False)) as (_, session):
        assert await order(session, mode="error_500") == 404


async def test_fault_refuse_resets_all_connections_but_those_that_give_orders() -> None:
    async with engine() as (_, session):
        await order(session, mode="refuse")
        for path in ("/health", "/metrics"):
            with pytest.raises(aiohttp.ClientConnectionError):
                await session.get(path)
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.post("/v1/chat/completions", json=CHAT)
        await order(session, mode="none")
        async with session.get("/health") as response:
            assert response.status == 200


async def test_fault_garbage_metrics() -> None:
    async with engine() as (_, session):
        await order(session, mode="garbage_metrics")
        async with session.get("/metrics") as response:
            assert (response.status, b"# TYPE" in await response.read()) == (200, False)


async def test_fault_slow_metrics() -> None:
    async with engine() as (_, session):
        await order(session, mode="slow_metrics", delay_s=30)
        with pytest.raises(TimeoutError):
            await session.get("/metrics", timeout=aiohttp.ClientTimeout(total=0.05))
        await order(session, mode="slow_metrics", delay_s=0.001)
        assert (await metrics(session))["vllm:num_requests_running"] == 0
