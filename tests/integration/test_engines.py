"""Each kind of engine behind a whole gateway: the state it reports, and how its errors reach the client."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.sections import ReadinessConfig
from gateway.core.vocabulary import GatewayId, Standing
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from tests.fakes.engine import GOOD_ANSWER, FakeEngine, answer
from tests.fakes.engine_pages import (
    HANGS,
    Page,
    PagesEngine,
    llama_metrics,
    model_list,
    server_context,
    sglang_loads,
    vllm_page,
)
from tests.support.certificates import Files, clients_leaf, new_ca, roots_of
from tests.support.core import EU, MODEL, MS, US
from tests.support.gateways import (
    ask,
    counted,
    free_replicas,
    knowing,
    region_config,
    region_document,
    serving_file,
    until,
    usable_peers,
    write_policy,
)

SGLANG_PAGES = {"/v1/loads": sglang_loads((0, 0))}


@dataclass
class World:
    folder: Path
    session: aiohttp.ClientSession

    @asynccontextmanager
    async def serving(self, *replicas: dict[str, object], **changes: object) -> AsyncIterator[GatewayHandle]:
        path = self.folder / "us.yaml"
        own = {
            "probes": {"interval": "5ms", "life_interval": "5ms", "models_interval": "10ms"},
            "attempt": {"ramp_limit": 1},
            "replicas": [{"id": f"r{number}", "models": [MODEL], **each} for number, each in enumerate(replicas)],
            **changes,
        }
        path.write_text(yaml.safe_dump(region_document(self.folder, "us-1", US, **own)))
        async with serving_file(path) as gateway:
            yield gateway

    async def answer(self, gateway: GatewayHandle) -> tuple[int, Any]:
        async with ask(self.session, gateway.http_url, stream=False) as response:
            return response.status, json.loads(await response.read())


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with aiohttp.ClientSession() as session:
        yield World(tmp_path, session)


@asynccontextmanager
async def engines(*pages: dict[str, Page]) -> AsyncIterator[list[PagesEngine]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(PagesEngine(dict(each)).serving()) for each in pages]


def detail_of(gateway: GatewayHandle) -> str:
    return next(iter(gateway.core.replicas)).detail


async def test_each_rank_of_an_engine_is_a_replica_and_gets_its_own_requests(world: World) -> None:
    async with engines({"/metrics": vllm_page((4, 1), (0, 0))}) as (engine,):
        replica = {"id": "dp", "url": engine.url, "data_parallel_ranks": 2}
        async with world.serving(replica) as gateway:
            await until(lambda: free_replicas(gateway) == 1)
            for _ in range(3):
                assert (await world.answer(gateway))[0] == 200
            assert {each["x-data-parallel-rank"] for each in engine.received} == {"1"}
            engine.pages["/metrics"] = vllm_page((0, 0), (4, 1))
            await until(lambda: gateway.core.replicas.at(0).waiting == 0 and gateway.core.replicas.at(1).waiting == 1)
            engine.received.clear()
            assert (await world.answer(gateway))[0] == 200
            assert [each["x-data-parallel-rank"] for each in engine.received] == ["0"]


async def test_a_client_cannot_pick_a_rank(world: World) -> None:
    async with engines({"/metrics": vllm_page((0, 0))}) as (engine,), world.serving({"url": engine.url}) as gateway:
        body = json.dumps({"model": MODEL, "messages": []})
        headers = {"content-type": "application/json", "x-data-parallel-rank": "1"}
        async with world.session.post(f"{gateway.http_url}/v1/chat/completions", data=body, headers=headers) as answer:
            assert answer.status == 200
        assert "x-data-parallel-rank" not in engine.received[0]


async def test_sglang_is_pushed_to_by_its_loads(world: World) -> None:
    async with engines({"/v1/loads": sglang_loads((4, 1))}) as (engine,):
        async with world.serving({"url": engine.url, "dialect": "sglang"}) as gateway:
            await until(lambda: gateway.core.replicas.at(0).standing is Standing.PENDING)
            engine.pages["/v1/loads"] = sglang_loads((4, 0))
            assert await world.answer(gateway) == (200, json.loads(GOOD_ANSWER))
        assert "/health" not in engine.asked


async def test_sglang_s_flat_error_reaches_the_client_nested(world: World) -> None:
    flat = b'{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":400}'
    async with engines(SGLANG_PAGES) as (engine,):
        engine.answers = [Page(flat, 400)]
        async with world.serving({"url": engine.url, "dialect": "sglang"}) as gateway:
            status, document = await world.answer(gateway)
    assert status == 400
    assert document == {"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}}


@pytest.mark.parametrize(
    "full",
    [
        Page(b'{"object":"error","message":"The request queue is full.","code":503}', 503),
        Page(b'{"error":"Model is overloaded","error_type":"overloaded"}', 429),
        Page(b'{"error":{"message":"cannot schedule new futures after shutdown","code":500}}', 500),
    ],
)
async def test_a_full_engine_is_left_for_another_without_harm(world: World, full: Page) -> None:
    async with engines(SGLANG_PAGES, SGLANG_PAGES) as (one, two):
        one.answers = two.answers = [full, Page(GOOD_ANSWER)]
        dialect = {"dialect": "sglang"}
        async with world.serving({"url": one.url, **dialect}, {"url": two.url, **dialect}) as gateway:
            assert (await world.answer(gateway))[0] == 200
            assert [state.breaker.state for state in gateway.core.replicas] == ["closed", "closed"]
        assert len(one.received) + len(two.received) == 2


async def test_an_engine_that_shuts_down_attracts_nobody_though_it_looks_idle(world: World) -> None:
    closing = Page(b'{"error":{"message":"cannot schedule new futures after shutdown","code":500}}', 500)
    async with engines({"/metrics": vllm_page((0, 0))}, {"/metrics": vllm_page((9, 0))}) as (one, two):
        one.answers = [closing]
        async with world.serving({"url": one.url}, {"url": two.url}) as gateway:
            await until(lambda: free_replicas(gateway) == 2)
            for _ in range(5):
                assert (await world.answer(gateway))[0] == 200
            await until(lambda: "shutting down" in detail_of(gateway))
        assert (len(one.received), len(two.received)) == (1, 5)


async def test_a_sleeping_engine_gets_nothing_until_it_wakes(world: World) -> None:
    async with engines({"/metrics": vllm_page((0, 0), asleep="weights_offloaded")}) as (engine,):
        async with world.serving({"url": engine.url}) as gateway, asyncio.TaskGroup() as tasks:
            await until(lambda: "sleeps" in detail_of(gateway))
            waiting = tasks.create_task(world.answer(gateway))
            await until(lambda: len(gateway.core.waiting) == 1)
            assert engine.received == []
            engine.pages["/metrics"] = vllm_page((0, 0))
            assert (await waiting)[0] == 200


async def test_a_slow_llamacpp_is_busy_and_not_dead(world: World) -> None:
    pages = {"/metrics": llama_metrics(4, 0), "/health": Page(b'{"status":"ok"}')}
    async with engines(pages) as (engine,):
        probes = {"interval": "5ms", "timeout": "150ms", "timeouts_max": 1}
        async with world.serving({"url": engine.url, "dialect": "llamacpp"}, probes=probes) as gateway:
            await until(lambda: free_replicas(gateway) == 1)
            engine.pages["/metrics"] = HANGS
            (state,) = gateway.core.replicas
            await until(lambda: state.standing is Standing.PENDING)
            assert state.healthy
            engine.pages["/metrics"] = llama_metrics(0, 0)
            await until(lambda: free_replicas(gateway) == 1)
            assert state.ramp.limit is None, "it never went"


async def test_an_engine_that_tells_no_load_takes_what_may_be_outstanding(world: World) -> None:
    async with engines({"/v1/models": model_list(MODEL)}) as (engine,):
        engine.answers = [HANGS]
        pushing = {"outstanding_max": 6, "in_band_credit": 1}
        async with world.serving({"url": engine.url, "dialect": "openai"}, pushing=pushing) as gateway:
            await until(lambda: free_replicas(gateway) == 1)
            async with asyncio.TaskGroup() as tasks:
                asked = [tasks.create_task(world.answer(gateway)) for _ in range(8)]
                await until(lambda: len(gateway.core.waiting) == 2)
                await until(lambda: len(engine.received) == 6)
                for task in asked:
                    task.cancel()
        assert set(engine.asked) == {"/v1/models"}


async def test_adapters_that_an_engine_loads_can_be_asked_for(world: World) -> None:
    pages = {"/metrics": vllm_page((0, 0)), "/v1/models": model_list(MODEL)}
    async with engines(pages) as (engine,), world.serving({"url": engine.url, "models": "auto"}) as gateway:
        assert (await world.answer(gateway))[0] == 200, "a gateway that is ready knows its models"
        state = gateway.core.replicas.at(0)
        engine.pages["/v1/models"] = model_list(MODEL, adapters={"support-de": MODEL})
        await until(lambda: "support-de" in gateway.core.replicas.groups.models)
        assert gateway.core.replicas.at(0) is state
        async with ask(world.session, gateway.http_url, model="support-de", stream=False) as response:
            assert response.status == 200


async def test_an_engine_behind_tls_is_believed_by_its_certificate(world: World, tmp_path: Path) -> None:
    ca = new_ca()
    files = Files(tmp_path / "engine")
    files.put(clients_leaf(ca), roots=roots_of(ca))
    pages = PagesEngine({"/metrics": vllm_page((0, 0))})
    async with pages.serving(tls=server_context(files)) as engine:
        tls = {"ca_file": str(files.roots), "server_name": "localhost"}
        async with world.serving({"url": engine.url, "tls": tls}) as gateway:
            assert (await world.answer(gateway))[0] == 200
        async with world.serving({"url": engine.url}) as gateway:
            await until(lambda: "certificate" in detail_of(gateway).lower())


async def ready(session: aiohttp.ClientSession, gateway: GatewayHandle) -> tuple[int, dict[str, str]]:
    async with session.get(f"{gateway.admin_url}/ready") as response:
        return response.status, await response.json()


async def test_an_engine_that_dies_shows_in_metrics_log_and_state_and_by_default_changes_nothing_else(
    world: World, tmp_path: Path
) -> None:
    said = io.StringIO()
    logger = make_logger(LoggingConfig(LogFormat.JSON), GatewayId("us-1"), said)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(FakeEngine().serving())
        config = region_config("us-1", US, [engine.url], policy_file=write_policy(tmp_path, US))
        async with serve_gateway(config, log=logger) as gateway:
            await until(lambda: free_replicas(gateway) == 1)
            assert counted(gateway, "replica_state", replica="us-1-r0", state="available") == 1
            await stack.aclose()
            await until(lambda: counted(gateway, "replica_state", replica="us-1-r0", state="down") == 1)
            await until(lambda: counted(gateway, "probe_age_seconds", replica="us-1-r0") > 0.3)
            assert await ready(world.session, gateway) == (200, {"status": "ready", "engines": "none of 1 is up"})
    lines = [json.loads(line) for line in said.getvalue().splitlines()]
    told = [line for line in lines if line["event"] in ("replica_up", "replica_down")]
    assert [(line["event"], line["level"], line["replica"]) for line in told] == [
        ("replica_up", "info", "us-1-r0"),
        ("replica_down", "warning", "us-1-r0"),
    ]
    assert "Error" in told[1]["reason"]


async def test_by_a_key_a_gateway_that_serves_nobody_is_not_ready_while_another_has_room(
    world: World, tmp_path: Path, unused_tcp_port: int
) -> None:
    """The other gateway is in a region where this gateway's requests may not go."""
    home = write_policy(tmp_path, US, process=[US])
    async with AsyncExitStack() as stack:
        here, there = [await stack.enter_async_context(FakeEngine().serving()) for _ in range(2)]
        eu_config = region_config(
            "eu-1", EU, [there.url], policy_file=write_policy(tmp_path, EU), peers_port=unused_tcp_port
        )
        us_config = replace(
            knowing(region_config("us-1", US, [here.url], policy_file=home), eu_config),
            readiness=ReadinessConfig(unserved_max_ns=200 * MS),
        )
        async with serve_gateway(us_config) as us, serve_gateway(knowing(eu_config, us_config)) as eu:
            await until(lambda: free_replicas(us) == free_replicas(eu) == usable_peers(us) == 1)
            assert (await ready(world.session, us))[0] == 200
            await us_engine_dies(us, here)
            while (await ready(world.session, us))[0] == 200:
                pass
            assert "no engine here" in (await ready(world.session, us))[1]["reason"]
            async with world.session.get(f"{us.http_url}/ready") as for_balancers:
                assert for_balancers.status == 503
            here.probe_script = None
            while (await ready(world.session, us))[0] == 503:
                pass


async def us_engine_dies(gateway: GatewayHandle, engine: FakeEngine) -> None:
    engine.probe_script = answer(500)
    await until(lambda: not gateway.core.replicas.reachable)
