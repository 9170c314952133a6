from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.core.vocabulary import GatewayId
from gateway.http import errors
from gateway.http.app import make_runner
from gateway.http.connections import Handler, raw_answer
from gateway.http.settings import HttpSettings
from gateway.records.refusals import Refusal
from tests.support.core import US
from tests.support.listening import serving_http


def test_an_answer_without_a_request_is_whole_and_closes() -> None:
    head, _, body = raw_answer(errors.TOO_MANY_CONNECTIONS).partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ") for line in lines)
    assert first == "HTTP/1.1 503 Service Unavailable"
    assert headers["content-length"] == str(len(body))
    assert (headers["connection"], headers["retry-after"]) == ("close", "1")
    assert json.loads(body)["error"]["code"] == "too_many_connections"


@asynccontextmanager
async def serving(handler: Handler, **settings: Any) -> AsyncIterator[int]:
    """A server with one page, run as the gateway's are; gives its port."""
    app = web.Application()
    app.router.add_get("/", handler)
    on_refused = settings.pop("on_refused", lambda _: None)
    runner = make_runner(app, HttpSettings(GatewayId("us-1"), US, **settings), on_refused=on_refused)
    async with serving_http(runner) as port:
        yield port


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux gives up what nobody takes")
async def test_the_system_cuts_a_connection_whose_other_end_takes_nothing() -> None:
    """Whatever is being written: where a handler of ours waits, it waits no longer than this."""
    told: list[int] = []

    async def look(request: web.Request) -> web.Response:
        assert request.transport is not None
        own = request.transport.get_extra_info("socket")
        told.append(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
        return web.Response()

    async with (
        serving(look, stall_s=1.5) as port,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/"),
    ):
        assert told == [1500]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="a task begins at once there, at no turn of the loop")
async def test_a_request_takes_no_task_of_its_own() -> None:
    """Making one, and waking it, is work between a client and its engine."""
    tasks: list[asyncio.Task[object] | None] = []

    async def look(request: web.Request) -> web.Response:
        del request
        tasks.append(asyncio.current_task())
        return web.Response()

    async with serving(look) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
    assert tasks[0] is tasks[1] is not None


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_what_names_no_version_of_http_is_refused_and_cut(method: str) -> None:
    async def look(request: web.Request) -> web.Response:
        raise AssertionError(f"{request} reached a handler")

    async with serving(look) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{method} /\r\n\r\n".encode())
        assert await reader.read() == raw_answer(errors.INVALID_REQUEST)
        writer.close()
        await writer.wait_closed()


async def test_what_is_turned_away_before_there_is_a_request_is_told() -> None:
    async def look(request: web.Request) -> web.Response:
        del request
        return web.Response()

    refused: list[Refusal] = []
    async with serving(look, connections_max=1, headers_bytes_max=200, on_refused=refused.append) as port:
        first_reader, first = await asyncio.open_connection("127.0.0.1", port)
        first.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await first_reader.readuntil(b"\r\n\r\n")
        for sent in (b"", b"GET / HTTP/1.1\r\nx: " + b"y" * 300):
            reader, writer = (first_reader, first) if sent else await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            assert await reader.read()
            writer.close()
            await writer.wait_closed()
    assert [(each.reason, each.status, each.tenant) for each in refused] == [
        ("too_many_connections", 503, None),
        ("headers_too_large", 431, None),
    ]
