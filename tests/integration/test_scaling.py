"""Whole gateways that exchange their scaling reports, on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.app.problems import read_status
from gateway.core.vocabulary import Place
from gateway.features.scaling.config import ScaledPoolConfig, ScalingConfig
from gateway.features.scaling.status import ScalingView
from loadgen.engine.server import serve_engines
from tests.support.core import EU, MODEL, US
from tests.support.gateways import ENOUGH_S, counted, knowing, region_config, until, write_policy
from tests.support.served import SLOW

MS = 1_000_000
POOL = ScaledPoolConfig(model=MODEL, concurrency=2, replicas_max=4)
SCALING = ScalingConfig(pools=(POOL,), interval_ns=20 * MS, window_ns=MS, up_after_ns=MS)
Ports = Callable[[], int]


@dataclass
class Two:
    """Europe with an idle engine; America with one that gets more requests than it should run."""

    us: GatewayHandle
    eu: GatewayHandle

    def wanted(self, gateway: GatewayHandle, name: str = "replicas_wanted") -> float:
        region = gateway.config.place.region
        return counted(gateway, name, region=region, model=MODEL, pool="default")


@asynccontextmanager
async def two(
    folder: Path, ports: Ports, scaling: ScalingConfig, *, eu_accepts: tuple[Place, ...] = (US, EU)
) -> AsyncIterator[Two]:
    async with AsyncExitStack() as stack:
        us_engine, eu_engine = await stack.enter_async_context(serve_engines([SLOW, SLOW]))
        us = region_config("us-1", US, [us_engine.url], policy_file=write_policy(folder, US), peers_port=ports())
        eu_policy = write_policy(folder, EU, accept=eu_accepts)
        eu = region_config("eu-1", EU, [eu_engine.url], policy_file=eu_policy, peers_port=ports())
        configs = [replace(knowing(us, eu), scaling=scaling), replace(knowing(eu, us), scaling=scaling)]
        first, second = [await stack.enter_async_context(serve_gateway(config)) for config in configs]
        both = Two(first, second)
        await until(lambda: all(both.wanted(each, "replicas_ready") == 1 for each in (first, second)))
        assert both.wanted(first) == both.wanted(second) == 1
        for gateway in (first, second) if scaling.mesh else ():
            await until_heard(gateway)
        yield both


async def until_heard(gateway: GatewayHandle) -> None:
    """Wait until the gateway uses the other one's report."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(ENOUGH_S):
        while not (await told(session, gateway))["listened_to"]:  # noqa: ASYNC110 - it is told when it is asked
            await asyncio.sleep(0.02)


async def told(session: aiohttp.ClientSession, gateway: GatewayHandle) -> dict[str, Any]:
    async with session.get(f"{gateway.admin_url}/admin/scaling") as answer:
        return dict(await answer.json())


async def ask_for(gateway: GatewayHandle, count: int, stack: AsyncExitStack) -> None:
    """Open streams that last until the test is over."""
    session = await stack.enter_async_context(aiohttp.ClientSession())
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 500, "stream": True}
    for _ in range(count):
        asking = session.post(f"{gateway.http_url}/v1/chat/completions", json=body)
        answer = await stack.enter_async_context(asking)
        assert answer.status == 200


async def test_a_region_counts_on_what_its_neighbour_idles_for(tmp_path: Path, unused_tcp_port_factory: Ports) -> None:
    async with AsyncExitStack() as stack:
        both = await stack.enter_async_context(two(tmp_path, unused_tcp_port_factory, SCALING))
        await ask_for(both.us, 2, stack)
        await until(lambda: both.wanted(both.us, "scaling_borrowed_requests") > 1)
        assert both.wanted(both.us) == 1
        assert both.wanted(both.us, "replicas_wanted_alone") == 2
        await until(lambda: both.wanted(both.eu, "scaling_lent_requests") > 1)
        assert both.wanted(both.eu, "replicas_ready") == 1


async def test_it_does_not_where_the_neighbour_would_not_take_it(
    tmp_path: Path, unused_tcp_port_factory: Ports
) -> None:
    async with AsyncExitStack() as stack:
        both = await stack.enter_async_context(two(tmp_path, unused_tcp_port_factory, SCALING, eu_accepts=(EU,)))
        await ask_for(both.us, 2, stack)
        await until(lambda: both.wanted(both.us) == 2)
        assert both.wanted(both.eu) == 1


async def test_each_for_itself_where_it_is_told_so(tmp_path: Path, unused_tcp_port_factory: Ports) -> None:
    async with AsyncExitStack() as stack:
        both = await stack.enter_async_context(two(tmp_path, unused_tcp_port_factory, replace(SCALING, mesh=False)))
        await ask_for(both.us, 2, stack)
        await until(lambda: both.wanted(both.us) == 2)
        assert both.wanted(both.us, "scaling_borrowed_requests") == 0


async def test_operators_and_autoscalers_are_told(tmp_path: Path, unused_tcp_port_factory: Ports) -> None:
    async with AsyncExitStack() as stack:
        both = await stack.enter_async_context(two(tmp_path, unused_tcp_port_factory, SCALING))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        (pool,) = (await told(session, both.us))["pools"]
        assert (pool["model"], pool["pool"], pool["wanted"], pool["ready"]) == (MODEL, "default", 1, 1)
        async with session.get(f"{both.us.admin_url}/admin/state") as answer:
            (view,) = [each for each in read_status(await answer.read()).views if isinstance(each, ScalingView)]
        assert [each.wanted for each in view.pools] == [1]


async def test_where_no_pool_is_listed_nothing_is_said(tmp_path: Path, unused_tcp_port_factory: Ports) -> None:
    async with AsyncExitStack() as stack:
        (engine,) = await stack.enter_async_context(serve_engines([SLOW]))
        config = region_config("us-1", US, [engine.url], policy_file=write_policy(tmp_path, US))
        gateway = await stack.enter_async_context(serve_gateway(config))
        assert b"nightside_replicas_wanted{" not in gateway.metrics.render()
