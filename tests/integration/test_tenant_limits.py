"""Limits of tenants and keys, over real gateways: two in a region and one abroad keep a limit together."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from msgspec.structs import replace

from gateway.config.sections import GatewayConfig, StateConfig
from gateway.core.config import CoreConfig
from gateway.core.features.limits.config import LimitScope
from gateway.core.features.limits.feature import limits_of
from gateway.core.tenant_config import TenantConfig
from gateway.core.vocabulary import Place, RequestId, TenantName
from gateway.records.decisions import Explanation
from gateway.security.keys_editing import add_key, set_tenant_budget
from mesh.clock import Clock
from tests.fakes.engine import GOOD_STREAM, hang, stream_until
from tests.support.core import EU, MODEL, US
from tests.support.gateways import CHAT, until, write_policy
from tests.support.regions import Mesh, Region
from tests.support.walk import ROOT

ACME = TenantName("acme")
PAGE = (ROOT / "docs/how_to/tenant_limits.md").read_text()
LIMIT = 6
BOUND = LIMIT + 2
"""The limit, and the floors of two gateways that arrive while a third has all of it: docs/how_to/tenant_limits.md."""


def running(regions: list[Region], tenant: TenantName = ACME) -> list[int]:
    meters = [limits_of(region.gateway.core).meter_of(tenant) for region in regions]
    return [0 if meter is None else meter.running for meter in meters]


def limited(config: GatewayConfig, **limits: Any) -> GatewayConfig:
    core: CoreConfig = replace(config.core, tenants={ACME: TenantConfig(**limits)})
    return replace(config, core=core, trust_tenant_header=True)


class Clients:
    """Clients that keep each answer open."""

    def __init__(self, session: aiohttp.ClientSession, tasks: asyncio.TaskGroup) -> None:
        self._session = session
        self._tasks = tasks
        self._held: list[asyncio.Task[aiohttp.ClientResponse]] = []
        self._numbers = count()

    async def ask(self, region: Region, tenant: str = ACME, path: str = "/v1/chat/completions") -> Any:
        """Error that the request is refused with; None: it was admitted, and stays open."""
        requests, request_id = region.gateway.core.requests, RequestId(f"asked-{next(self._numbers)}")
        asked = self._tasks.create_task(self._post(region, tenant, path, request_id))
        await until(lambda: asked.done() or request_id in requests)  # forwards of others come and go meanwhile
        if asked.done():
            return asked.result().status, asked.result().headers, await asked.result().json()
        self._held.append(asked)
        return None

    def leave(self) -> None:
        for task in self._held:
            task.cancel()

    async def _post(self, region: Region, tenant: str, path: str, request_id: RequestId) -> aiohttp.ClientResponse:
        return await self._session.post(
            f"{region.gateway.http_url}{path}",
            json={**CHAT, "max_tokens": 5},
            headers={
                "x-nightside-tenant": tenant,
                "anthropic-version": "2023-06-01",
                "x-request-id": request_id,
            },
        )


@asynccontextmanager
async def clients_of(mesh: Mesh) -> AsyncIterator[Clients]:
    async with asyncio.TaskGroup() as tasks:
        clients = Clients(mesh.session, tasks)
        try:
            yield clients
        finally:
            clients.leave()


async def three(mesh: Mesh, change: Callable[[GatewayConfig], GatewayConfig]) -> list[Region]:
    regions = [await mesh.region("us-1", US), await mesh.region("us-2", US), await mesh.region("eu-1", EU)]
    for region in regions:
        region.config = change(region.config)
        region.engine.plays(hang)
    await mesh.start(*regions)
    return regions


class TestConcurrency:
    async def test_three_gateways_keep_one_limit_and_leave_others_alone(self, mesh: Mesh) -> None:
        regions = us, near, eu = await three(mesh, lambda config: limited(config, concurrency_max=LIMIT))
        async with clients_of(mesh) as clients:
            while sum(running(regions)) < LIMIT:
                await clients.ask(us)
                assert sum(running(regions)) <= BOUND
            assert running(regions) == [LIMIT, 0, 0]

            for region in (eu, near):
                assert await clients.ask(region) is None, "a newcomer has its floor at once"
            details = []
            for region in regions:
                status, headers, body = await clients.ask(region)
                assert (status, body["error"]["code"]) == (429, "tenant_concurrency_exceeded")
                assert int(headers["retry-after"]) >= 1
                told = await explained(mesh, region, headers["x-request-id"])
                assert told.here.outcome == "rejected_tenant_concurrency"
                details.append(told.here.detail)
                assert [await clients.ask(region, "other") for _ in range(3)] == [None] * 3
            assert all(f"under way (limit {LIMIT}" in detail for detail in details)
            assert "of which this gateway's share is 1 at present" in details[-1]
            assert sum(running(regions)) == BOUND

            clients.leave()
            await until(lambda: sum(running(regions)) == 0)
            assert await clients.ask(eu) is None

    @pytest.mark.parametrize(("from_eu", "most"), [((EU,), [LIMIT, LIMIT]), ((EU, US), [LIMIT, 1])])
    async def test_regions_that_residency_keeps_apart_in_one_direction_have_it_each(
        self, mesh: Mesh, tmp_path: Path, from_eu: tuple[Place, ...], most: list[int]
    ) -> None:
        policies = [write_policy(tmp_path, US), write_policy(tmp_path, EU, process=from_eu)]
        regions = us, eu = [await mesh.region("us-1", US, policies[0]), await mesh.region("eu-1", EU, policies[1])]
        for region in regions:
            region.config = limited(region.config, concurrency_max=LIMIT)
            region.engine.plays(hang)
        await mesh.start(us, eu)
        async with clients_of(mesh) as clients:
            while running([us]) < [LIMIT]:
                await clients.ask(us)
            while await clients.ask(eu) is None:
                assert sum(running(regions)) <= 2 * LIMIT
            assert running(regions) == most

    async def test_the_command_of_the_page_shows_a_limit_at_work(self, mesh: Mesh, tmp_path: Path) -> None:
        (command, shown) = re.findall(r"```(?:sh|text)\n(.*?)```", PAGE, flags=re.DOTALL)
        us, gate = await mesh.region("us-1", US), asyncio.Event()
        keys = tmp_path / "keys.yaml"
        key = add_key(keys, "a", {"tenant": "acme"}, Clock().wall_ns(), may_be_missing=True).key
        us.config = replace(limited(us.config, concurrency_max=LIMIT), trust_tenant_header=False, keys_file=keys)
        us.engine.plays(stream_until(gate, (), GOOD_STREAM))
        await mesh.start(us)
        moved = command.replace("http://127.0.0.1:8080", us.gateway.http_url).replace("Qwen/Qwen3-8B", MODEL)
        async with asyncio.TaskGroup() as tasks:
            printed = tasks.create_task(printed_by(moved, key))
            await until(lambda: printed.done() or (running([us]), refused_at(us)) == ([LIMIT], 2))
            gate.set()
        assert printed.result().split() == shown.split() == [str(LIMIT), "200", "2", "429"]

    async def test_each_region_may_have_it_for_itself(self, mesh: Mesh) -> None:
        regions = us, near, eu = await three(
            mesh, lambda config: limited(config, concurrency_max=2, limit_scope=LimitScope.REGION)
        )
        async with clients_of(mesh) as clients:
            for region in (us, near, eu, eu):
                assert await clients.ask(region) is None
            assert running(regions) == [1, 1, 2]
            assert (await clients.ask(eu))[0] == 429


class TestRates:
    async def test_whoever_is_refused_learns_how_much_is_left_and_when_in_its_own_words(self, mesh: Mesh) -> None:
        us, _, _ = await three(mesh, lambda config: limited(config, requests_per_minute=3))
        async with clients_of(mesh) as clients:
            assert await clients.ask(us) is None
            status, headers, body = await clients.ask(us, path="/v1/messages")
        assert (status, body["type"], body["error"]["type"]) == (429, "error", "rate_limit_error")
        assert headers["x-ratelimit-limit-requests"] == "3"
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert headers["x-ratelimit-reset-requests"].endswith("s")
        assert 0 < int(headers["retry-after"]) <= 60


class TestBudgets:
    @pytest.mark.parametrize("of", ["key", "tenant"])
    async def test_one_that_is_used_up_at_one_gateway_is_so_at_the_other_also_when_the_first_has_died(
        self, mesh: Mesh, tmp_path: Path, of: str
    ) -> None:
        keys = tmp_path / "keys.yaml"
        budget = {"tokens_per_day": 1}
        key = add_key(
            keys, "a", {"tenant": "acme", **(budget if of == "key" else {})}, Clock().wall_ns(), may_be_missing=True
        ).key
        if of == "tenant":
            set_tenant_budget(keys, "acme", budget)
        regions = us, eu = [await mesh.region("us-1", US), await mesh.region("eu-1", EU)]
        for region in regions:
            state = StateConfig(tmp_path / region.config.gateway_id)
            region.config = replace(region.config, keys_file=keys, state=state)
        await mesh.start(us, eu)
        ask = asking(mesh.session, key)

        assert await ask(us) == "answered"
        name = (of, "a" if of == "key" else "acme")
        await until(lambda: eu.gateway.budgets.by_others(name).in_day > 0)
        assert [await ask(eu), await ask(us)] == ["budget_exceeded"] * 2

        await us.stop()
        await eu.stop()
        await eu.start()
        await until(lambda: not eu.is_busy)
        assert await ask(eu) == "budget_exceeded"


def refused_at(region: Region) -> float:
    """Requests that were refused for their tenant's concurrency."""
    labels = {"model": MODEL, "outcome": "rejected_tenant_concurrency"}
    return region.gateway.metrics.registry.get_sample_value("nightside_requests_total", labels) or 0


async def printed_by(command: str, key: str) -> str:
    shell = await asyncio.create_subprocess_exec(
        "bash", "-c", command, env={"PATH": os.defpath, "KEY": key}, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await shell.communicate()
    return printed.decode()


async def explained(mesh: Mesh, region: Region, request_id: str) -> Explanation:
    async with mesh.session.get(f"{region.gateway.admin_url}/admin/explain/{request_id}") as response:
        return msgspec.json.decode(await response.read(), type=Explanation)


def asking(session: aiohttp.ClientSession, key: str) -> Callable[[Region], Awaitable[str]]:
    async def ask(region: Region) -> str:
        asked = session.post(
            f"{region.gateway.http_url}/v1/chat/completions",
            json=CHAT,
            headers={"authorization": f"Bearer {key}"},
        )
        async with asked as response:
            body = await response.read()
        return "answered" if response.status == 200 else str(json.loads(body)["error"]["code"])

    return ask
