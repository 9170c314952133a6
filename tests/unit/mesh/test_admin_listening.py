from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest
import uvloop
from aiohttp import web

from mesh.admin_listening import ListenLimits, listen_for_operators
from mesh.admin_server import admin_middlewares
from mesh.operators import Operators
from mesh.page.live import LivePage, LiveSettings, add_live
from mesh.values import Address
from tests.hostile.event_streams import CONNECTIONS_MAX, STORM_CASES, WATCHERS_MAX, StormCase
from tests.support.gateways import until
from tests.support.storms import blowing

HERE = Address("127.0.0.1", 0)


@dataclass
class Shown:
    live: LivePage
    address: Address

    async def status(self, path: str = "/admin/overview") -> int:
        try:
            async with aiohttp.ClientSession() as session, session.get(f"http://{self.address}{path}") as response:
                return response.status
        except aiohttp.ClientError:
            return 0


@asynccontextmanager
async def shown(limits: ListenLimits | None = None) -> AsyncIterator[Shown]:
    live = LivePage(lambda: {"rows": ["x" * 1000] * 100}, LiveSettings(interval_s=0.01, alive_s=0.05, stall_s=0.3))
    app = web.Application(middlewares=admin_middlewares(Operators(), ["localhost"]))
    add_live(app, live)
    async with AsyncExitStack() as stack:
        yield Shown(live, await listen_for_operators(stack, app, HERE, None, limits))


@pytest.mark.parametrize("case", STORM_CASES, ids=lambda case: case.name)
async def test_a_storm_holds_no_more_than_it_may_and_gives_all_of_it_back(case: StormCase) -> None:
    async with shown(ListenLimits(first_request_s=0.3)) as at:
        async with blowing(case, at.address) as storm:
            assert at.live.watchers <= WATCHERS_MAX
            assert storm.watching <= WATCHERS_MAX
            if case.is_given_up:
                await until_answered(at)
        await until(lambda: at.live.watchers == 0)
        await until_answered(at)


async def until_answered(at: Shown) -> None:
    async with asyncio.timeout(60):
        while await at.status() != 200:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)


async def test_one_too_many_is_told_so() -> None:
    async with shown(ListenLimits(connections_max=2)) as at, AsyncExitStack() as stack:
        for _ in range(2):
            _, writer = await asyncio.open_connection(at.address.host, at.address.port)
            stack.callback(writer.close)
        await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection(at.address.host, at.address.port)
        stack.callback(writer.close)
        assert (await reader.read()).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert ListenLimits().connections_max == CONNECTIONS_MAX


async def test_those_that_are_told_so_are_bounded_too() -> None:
    async with shown(ListenLimits(connections_max=1)) as at, AsyncExitStack() as stack:
        readers = []
        for _ in range(5):
            reader, writer = await asyncio.open_connection(at.address.host, at.address.port)
            stack.callback(writer.close)
            readers.append(reader)
        told = [await _all_of(reader) for reader in readers[1:]]
        assert [text[:12] for text in told] == [b"HTTP/1.1 503", b"", b"", b""]


async def _all_of(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def test_headers_may_come_in_pieces() -> None:
    async with shown(ListenLimits(first_request_s=0.5)) as at:
        reader, writer = await asyncio.open_connection(at.address.host, at.address.port)
        for each in (b"GET /admin/overview HTTP/1.1\r\nhost: localhost\r", b"\n", b"\r", b"\n"):
            writer.write(each)
            await writer.drain()
            await asyncio.sleep(0.01)
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        later, end = await asyncio.open_connection(at.address.host, at.address.port)
        assert await _all_of(later) == b"", "the time of a first request is over, and over again"
        end.close()
        writer.write(b"GET /admin/overview HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert b"HTTP/1.1 200 OK" in await _all_of(reader)
        writer.close()


def test_it_serves_on_the_loop_that_gateways_and_controllers_run_on() -> None:
    """The transports of uvloop are none of asyncio's classes."""

    async def serve() -> tuple[int, int]:
        async with shown(ListenLimits(connections_max=1)) as at, aiohttp.ClientSession() as session:
            url = f"http://{at.address}/admin/overview"
            async with session.get(url) as first, aiohttp.ClientSession() as other, other.get(url) as second:
                return first.status, second.status

    assert uvloop.run(serve()) == (200, 503)
