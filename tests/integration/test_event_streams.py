"""Storms on the admin addresses of a gateway and of a controller.

The cases are data: `tests/hostile/event_streams.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from msgspec.structs import replace

from controller.app import ControllerHandle, serve_controller
from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.sections import LimitsConfig
from mesh.values import Address
from tests.fakes.attached import hello
from tests.fakes.engine import FakeEngine
from tests.hostile.event_streams import STORM_CASES, WATCHERS_MAX, StormCase
from tests.support.controllers import plain_gateway, read_file
from tests.support.core import SECOND, US
from tests.support.gateways import ask, free_replicas, region_config, until, write_policy
from tests.support.nightly import first_of
from tests.support.storms import blowing

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayHandle]:
    folder = tmp_path_factory.mktemp("storms")
    async with FakeEngine().serving() as engine:
        config = region_config("us-1", US, [engine.url], policy_file=write_policy(folder, US))
        limits = LimitsConfig(headers_wait_ns=2 * SECOND, idle_connection_ns=2 * SECOND)
        async with serve_gateway(replace(config, limits=limits)) as handle:
            await until(lambda: free_replicas(handle) == 1)
            yield handle


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def controller(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControllerHandle]:
    async with serve_controller(read_file(Path(tmp_path_factory.mktemp("storms")))) as handle:
        yield handle


@pytest.mark.parametrize("case", STORM_CASES, ids=lambda case: case.name)
async def test_clients_of_a_gateway_notice_nothing(gateway: GatewayHandle, case: StormCase) -> None:
    async with aiohttp.ClientSession() as operator, aiohttp.ClientSession() as client:
        async with operator.get(f"{gateway.admin_url}/admin/events") as watching:
            assert watching.status == 200
            async with blowing(case, gateway.admin_address) as storm:
                async with asyncio.timeout(60), ask(client, gateway.http_url) as answer:
                    assert answer.status == 200
                    await answer.read()
                await told_on(watching)
                assert storm.watching < WATCHERS_MAX
                if case.is_given_up:
                    await until_answered(operator, gateway.admin_address)
        await until_answered(operator, gateway.admin_address)


@pytest.mark.parametrize("case", first_of(STORM_CASES, kept=4), ids=lambda case: case.name)
async def test_gateways_of_a_controller_notice_nothing(controller: ControllerHandle, case: StormCase) -> None:
    async with plain_gateway(controller.grpc_address, hello("us-1", US)) as attached:
        async with blowing(case, controller.admin_address) as storm:
            alive = attached.alive
            await attached.until(lambda us: us.alive > alive)
            assert storm.watching <= WATCHERS_MAX
        async with aiohttp.ClientSession() as operator:
            await until_answered(operator, controller.admin_address)


async def told_on(watching: aiohttp.ClientResponse) -> None:
    """Wait until the page is sent a recent decision."""
    async with asyncio.timeout(60):
        async for line in watching.content:
            if line.startswith(b"data: ") and b"decisions" in line:
                return


async def until_answered(operator: aiohttp.ClientSession, address: Address) -> None:
    """Wait until the page answers and one more watcher is admitted."""
    async with asyncio.timeout(60):
        while await _status(operator, address) != 200:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)


async def _status(operator: aiohttp.ClientSession, address: Address) -> int:
    try:
        async with operator.get(f"http://{address}/admin/events") as response:
            return response.status
    except aiohttp.ClientError:
        return 0
