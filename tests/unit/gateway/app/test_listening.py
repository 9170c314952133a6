from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from gateway.app.listening import ListeningSockets, server_limits, stop_server
from gateway.core.vocabulary import GatewayId
from gateway.door.settings import HttpSettings
from gateway.http1.server import Exchange, HttpFault, HttpServer
from mesh.clock import Clock
from mesh.tls import HttpTls
from mesh.values import Address
from tests.support.certificates import Files, clients_leaf, new_ca, roots_of
from tests.support.core import US
from tests.support.gateways import until
from tests.support.listening import knock, until_dropped

HERE = Address("127.0.0.1", 0)
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class Hello:
    """Handler that greets; unless `is_slow`, at once."""

    def __init__(self) -> None:
        self.is_slow = False
        self.exchanges: list[Exchange] = []

    def serve(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        if not self.is_slow:
            exchange.respond(200, {}, b"hello")

    def refuse(self, fault: HttpFault) -> bytes:
        raise AssertionError(f"no test is refused for {fault}")


class Served:
    def __init__(self, tls: ssl.SSLContext | None, handshake_s: float = 0.05) -> None:
        self.hello = Hello()
        self.server = HttpServer(self.hello, server_limits(HttpSettings(GatewayId("us-1"), US)))
        self.door = ListeningSockets(self.server, HERE, tls=tls, handshake_s=handshake_s)
        self.running = 0

    @property
    def port(self) -> int:
        return self.door.address.port


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Served]:
    served = Served(tls)
    await served.door.open(())
    try:
        yield served
    finally:
        await served.door.close()
        await stop_server(served.server, lambda: served.running)


def context_of(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS of a server, and of clients that trust it."""
    ca, files = new_ca(), Files(folder)
    files.put(clients_leaf(ca))
    return HttpTls(files.listen(), Clock()).context, ssl.create_default_context(cadata=roots_of(ca).decode())


@pytest.mark.parametrize("with_tls", [True, False])
async def test_it_serves_with_tls_and_without(tmp_path: Path, with_tls: bool) -> None:
    own, trust = context_of(tmp_path)
    async with serving(own if with_tls else None) as served, aiohttp.ClientSession() as session:
        scheme = "https" if with_tls else "http"
        async with session.get(f"{scheme}://127.0.0.1:{served.port}/", ssl=trust) as response:
            assert await response.text() == "hello"


@pytest.mark.parametrize("with_tls", [True, False])
async def test_only_those_who_ask_for_it_share_a_port(tmp_path: Path, with_tls: bool) -> None:
    tls = context_of(tmp_path)[0] if with_tls else None
    server = Served(None).server
    first = ListeningSockets(server, HERE, tls=tls, handshake_s=1.0, reuse_port=True)
    await first.open(())
    second = ListeningSockets(server, first.address, tls=tls, handshake_s=1.0, reuse_port=True)
    await second.open(())
    third = ListeningSockets(server, first.address, tls=tls, handshake_s=1.0)
    with pytest.raises(OSError, match="in use"):
        await third.open(())
    await first.close()
    await second.close()


@pytest.mark.parametrize("turns", range(5))
async def test_who_comes_while_it_closes_is_dropped(turns: int) -> None:
    async with asyncio.timeout(10):
        async with serving() as served:
            caller = await knock(served.port, turns)
        await until_dropped(caller)


async def test_a_handshake_that_is_never_made_is_given_up(tmp_path: Path) -> None:
    async with serving(context_of(tmp_path)[0]) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()


async def test_one_that_is_shut_leaves_new_connections_waiting_until_it_opens_again() -> None:
    async with serving() as served:
        address = served.door.address
        await served.door.shut()
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(GET)
        await asyncio.sleep(0)
        assert not served.server.open_connections
        await served.door.reopen()
        assert served.door.address == address
        assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200 ")
        writer.close()
        await writer.wait_closed()


async def test_whoever_is_connected_is_told_when_it_leaves() -> None:
    async with serving() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(GET)
        assert b"connection: close" not in await reader.readuntil(b"hello")
        await served.door.shut()
        served.door.leave()
        async with asyncio.TaskGroup() as tasks:
            emptying = tasks.create_task(served.door.until_empty())
            await asyncio.sleep(0)
            assert not emptying.done()
            writer.write(GET)
            assert b"connection: close" in await reader.read()
            writer.close()
        assert served.server.open_connections == 0


@pytest.mark.parametrize("is_running", [False, True])
async def test_stopping_sends_what_is_complete_and_cuts_what_runs(is_running: bool) -> None:
    async with serving() as served:
        served.running = int(is_running)
        served.hello.is_slow = is_running
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(GET)
        await until(lambda: bool(served.hello.exchanges))
    assert served.server.open_connections == 0
    try:
        assert (await reader.read()).endswith(b"" if is_running else b"hello")
    except ConnectionResetError:
        assert is_running
    writer.close()
