"""The operators' port answers to this machine's names only: a web page whose name comes to resolve to this machine gets
no data out of it (DNS rebinding).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle, serve_gateway
from tests.support.core import US
from tests.support.gateways import region_config, write_policy
from tests.support.wire import CHAT_BODY, CHAT_PATH

PATHS = (
    "/metrics",
    "/admin/state",
    "/admin/explain/r-1",
    "/health",
    "/ready",
    "/",
    "/page/main.js",
    "/admin/overview",
    "/admin/events",
)


@asynccontextmanager
async def serving(folder: Path, *hosts: str) -> AsyncIterator[GatewayHandle]:
    config = region_config("us-1", US, [], policy_file=write_policy(folder, US))
    async with serve_gateway(replace(config, listen=replace(config.listen, admin_hosts=hosts))) as gateway:
        yield gateway


@pytest.mark.parametrize(
    "host", ["evil.example.net:9900", "evil.example.net", "127.0.0.1.evil.example.net", "10.0.0.7"]
)
async def test_another_host_gets_nothing(tmp_path: Path, session: aiohttp.ClientSession, host: str) -> None:
    async with serving(tmp_path) as gateway:
        for path in PATHS:
            async with session.get(gateway.admin_url + path, headers={"host": host}) as response:
                assert (response.status, (await response.json()).keys()) == (421, {"error"})
        order = {"active": True}
        async with session.post(f"{gateway.admin_url}/admin/lockdown", json=order, headers={"host": host}) as response:
            assert response.status == 421
        assert gateway.core.forwarding_stop is None


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example.net",
        "http://localhost:3000",
        "http://127.0.0.1:1",
        "http://127.0.0.1",
        "http://ops.example.net.evil.example.net",
        "http://localhost@evil.example.net",
        "null",
        "",
    ],
)
async def test_a_page_of_another_origin_orders_nothing(
    tmp_path: Path, session: aiohttp.ClientSession, origin: str
) -> None:
    async with serving(tmp_path, "ops.example.net") as gateway:
        for host in (str(gateway.admin_address), "ops.example.net"):
            headers = {"origin": origin, "host": host}
            order = {"active": True}
            async with session.post(f"{gateway.admin_url}/admin/lockdown", json=order, headers=headers) as response:
                assert (response.status, (await response.json()).keys()) == (403, {"error"})
            async with session.get(f"{gateway.admin_url}/admin/state", headers=headers) as response:
                assert response.status == 403
        assert gateway.core.forwarding_stop is None


@pytest.mark.parametrize("is_behind_a_proxy", [False, True])
async def test_its_own_page_does(tmp_path: Path, session: aiohttp.ClientSession, *, is_behind_a_proxy: bool) -> None:
    async with serving(tmp_path, "Ops.example.net") as gateway:
        origin = "https://ops.example.net:8443" if is_behind_a_proxy else gateway.admin_url
        order = {"active": True, "reason": "a test"}
        headers = {"origin": origin}
        async with session.post(f"{gateway.admin_url}/admin/lockdown", json=order, headers=headers) as response:
            assert response.status == 200
        assert gateway.core.forwarding_stop is not None


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9900", "127.0.0.1:1", "[::1]:9900", "ops.example.net:80"])
async def test_this_machine_and_names_that_were_configured_do(
    tmp_path: Path, session: aiohttp.ClientSession, host: str
) -> None:
    async with serving(tmp_path, "Ops.example.net") as gateway:
        async with session.get(f"{gateway.admin_url}/admin/state", headers={"host": host}) as response:
            assert response.status == 200


async def test_models_are_not_called_there(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    async with serving(tmp_path) as gateway:
        async with session.post(gateway.admin_url + CHAT_PATH, data=CHAT_BODY) as response:
            assert response.status == 404
