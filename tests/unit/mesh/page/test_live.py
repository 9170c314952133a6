from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec.structs import replace

from mesh.page.live import LivePage, LiveSettings, add_live
from tests.support.gateways import until

QUICK = LiveSettings(watchers_max=2, interval_s=0.01, alive_s=0.05, stall_s=0.2)


class Shown:
    """Sections of the page, and how often they were read."""

    def __init__(self) -> None:
        self.sections: dict[str, Any] = {"who": {"name": "us-1"}, "queue": []}
        self.looks = 0

    def __call__(self) -> dict[str, Any]:
        self.looks += 1
        return dict(self.sections)


@asynccontextmanager
async def watched(shown: Shown) -> AsyncIterator[tuple[LivePage, str, aiohttp.ClientSession]]:
    app, live = web.Application(), LivePage(shown, QUICK)
    add_live(app, live)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        yield live, str(server.make_url("/admin/events")), session


async def next_data(response: aiohttp.ClientResponse) -> dict[str, Any]:
    async for line in response.content:
        if line.startswith(b"data: "):
            told: dict[str, Any] = json.loads(line[6:])
            return told
    raise AssertionError("the stream ended")


async def test_all_is_told_at_first_and_then_what_changed() -> None:
    shown = Shown()
    async with watched(shown) as (_, url, session), session.get(url) as response:
        assert response.content_type == "text/event-stream"
        assert response.headers["cache-control"] == "no-store"
        assert await next_data(response) == shown.sections
        shown.sections["queue"] = [["llama", 3]]
        assert await next_data(response) == {"queue": [["llama", 3]]}


async def test_something_is_said_where_nothing_changes() -> None:
    async with watched(Shown()) as (_, url, session), session.get(url) as response:
        await next_data(response)
        await response.content.readuntil(b": alive\n\n")


async def test_nobody_looks_while_nobody_watches_and_one_look_is_for_all() -> None:
    shown = Shown()
    async with watched(shown) as (live, url, session):
        assert shown.looks == 0
        async with session.get(url) as one, session.get(url) as other:
            assert await next_data(one) == await next_data(other)
        await until(lambda: live.watchers == 0)
        assert shown.looks > 0


async def test_those_who_watch_are_bounded_and_those_who_left_make_room() -> None:
    async with watched(Shown()) as (live, url, session):
        async with session.get(url) as one, session.get(url) as other:
            await next_data(one)
            await next_data(other)
            async with session.get(url) as third:
                assert third.status == 503
                assert "2 watch already" in (await third.json())["error"]
        await until(lambda: live.watchers == 0)
        async with session.get(url) as again:
            assert again.status == 200


async def test_whoever_asks_for_headers_alone_does_not_watch() -> None:
    """Bytes written after the headers would be read as the next answer on that connection."""
    async with watched(Shown()) as (live, url, session), session.head(url) as response:
        assert (response.status, live.watchers) == (405, 0)


async def test_no_stream_lasts_for_ever() -> None:
    """The token that opened the stream may have become invalid."""
    app = web.Application()
    add_live(app, LivePage(Shown(), replace(QUICK, lasts_s=0.05)))
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        async with session.get(str(server.make_url("/admin/events"))) as response:
            await next_data(response)
            await response.content.read()
            assert response.content.at_eof()


async def test_whoever_reads_nothing_is_left() -> None:
    """The page is far larger than any buffer, and differs each time."""
    shown = Shown()
    async with watched(shown) as (live, url, session), session.get(url) as response:
        await next_data(response)
        number = 0

        def look() -> bool:
            nonlocal number
            number += 1
            shown.sections["queue"] = f"{number}{'x' * 8_000_000}"
            return live.watchers == 0

        await until(look)


async def test_an_end_of_the_program_ends_every_stream() -> None:
    app, live = web.Application(), LivePage(Shown(), LiveSettings(interval_s=3600))
    add_live(app, live)
    runner = web.AppRunner(app, shutdown_timeout=3600)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{runner.addresses[0][1]}/admin/events") as response:
            await next_data(response)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(runner.cleanup())
                assert await response.content.read() in (b"", b"\n")
