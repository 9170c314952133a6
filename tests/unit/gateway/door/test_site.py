from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from gateway.door.site import Site
from mesh.clock import Clock
from mesh.tls import HttpTls
from tests.support.certificates import Files, clients_leaf, new_ca, roots_of
from tests.support.listening import knock, until_dropped


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None) -> AsyncIterator[int]:
    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/", hello)
    runner = web.AppRunner(app)
    await runner.setup()
    await Site(runner, "127.0.0.1", 0, backlog=8, tls=tls, handshake_s=0.05).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


@pytest.mark.parametrize("with_tls", [True, False])
async def test_it_serves_with_tls_and_without(tmp_path: Path, with_tls: bool) -> None:
    ca, files = new_ca(), Files(tmp_path)
    files.put(clients_leaf(ca))
    context = HttpTls(files.listen(), Clock()).context if with_tls else None
    trust = ssl.create_default_context(cadata=roots_of(ca).decode())
    async with serving(context) as port, aiohttp.ClientSession() as session:
        async with session.get(f"http{'s' if with_tls else ''}://127.0.0.1:{port}/", ssl=trust) as response:
            assert await response.text() == "hello"


@pytest.mark.parametrize("with_tls", [True, False])
async def test_only_those_who_ask_for_it_share_a_port(tmp_path: Path, with_tls: bool) -> None:
    files = Files(tmp_path)
    files.put(clients_leaf(new_ca()))
    tls = HttpTls(files.listen(), Clock()).context if with_tls else None
    runner = web.AppRunner(web.Application())
    await runner.setup()
    await Site(runner, "127.0.0.1", 0, backlog=8, tls=tls, handshake_s=1.0, reuse_port=True).start()
    port = runner.addresses[0][1]
    await Site(runner, "127.0.0.1", port, backlog=8, tls=tls, handshake_s=1.0, reuse_port=True).start()
    with pytest.raises(OSError, match="in use"):
        await Site(runner, "127.0.0.1", port, backlog=8, tls=tls, handshake_s=1.0).start()
    await runner.cleanup()


@pytest.mark.parametrize("turns", range(5))
async def test_who_comes_while_it_closes_is_dropped(turns: int) -> None:
    async with asyncio.timeout(10):
        async with serving(None) as port:
            caller = await knock(port, turns)
        await until_dropped(caller)


async def test_a_handshake_that_is_never_made_is_given_up(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.put(clients_leaf(new_ca()))
    async with serving(HttpTls(files.listen(), Clock()).context) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
