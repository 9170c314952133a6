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
from gateway.door import errors
from gateway.door.app import make_runner
from gateway.door.connections import Handler, raw_answer
from gateway.door.settings import HttpSettings
from gateway.records.refusals import Refusal
from tests.support.core import US
from tests.support.gateways import until
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
    """The limit holds for any response, and is as long as a waiting handler's own limit."""
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
    """Creating a task, and waking it, would cost time between a client and its engine."""
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


@pytest.mark.parametrize("coding", ["chunked", "Chunked", " chunked "])
async def test_chunks_over_http_1_1_are_taken(coding: str) -> None:
    async def look(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async with serving(look) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET / HTTP/1.1\r\nhost: x\r\ntransfer-encoding:{coding}\r\n\r\n{_CHUNK}".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert await reader.readexactly(1) == b"a"
        writer.close()
        await writer.wait_closed()


_CHUNK = "1\r\na\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "head, kind",
    [
        ("GET / HTTP/2.0\r\nhost: x\r\n\r\n", errors.VERSION_NOT_SUPPORTED),
        ("POST / HTTP/2.0\r\nhost: x\r\ncontent-length: 1\r\n\r\na", errors.VERSION_NOT_SUPPORTED),
        ("POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n", errors.INVALID_TRANSFER_ENCODING),
        ("POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: x, chunked\r\n\r\n", errors.INVALID_TRANSFER_ENCODING),
        ("POST / HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n", errors.INVALID_TRANSFER_ENCODING),
    ],
)
async def test_what_another_reader_might_frame_otherwise_is_refused_and_cut(head: str, kind: errors.ErrorKind) -> None:
    async def look(request: web.Request) -> web.Response:
        raise AssertionError(f"{request} reached a handler")

    behind = _CHUNK if "transfer-encoding" in head else ""
    async with serving(look) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write((head + behind).encode())
        assert await reader.read() == raw_answer(kind)
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("value", [b"a\x01b", b"a\x1bb", b"a\x7fb", b"a\x00b"])
async def test_a_control_character_in_a_header_is_named_as_what_it_is(value: bytes) -> None:
    async def look(request: web.Request) -> web.Response:
        raise AssertionError(f"{request} reached a handler")

    async with serving(look) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nuser-agent: " + value + b"\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.split()[1] == b"400"
        assert json.loads(body)["error"]["code"] == "invalid_header"
        writer.close()
        await writer.wait_closed()


async def test_any_other_byte_in_a_header_is_taken() -> None:
    async def look(request: web.Request) -> web.Response:
        return web.Response(body=request.headers["user-agent"].encode("utf-8", "surrogateescape"))

    sent = bytes([9, *range(32, 127), *range(128, 256)])
    async with serving(look) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nuser-agent: (" + sent + b")\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert await reader.readexactly(len(sent) + 2) == b"(" + sent + b")"
        writer.close()
        await writer.wait_closed()


async def test_what_is_packed_is_not_unpacked_before_anybody_has_asked_for_it() -> None:
    came: list[bytes] = []

    async def look(request: web.Request) -> web.Response:
        came.append(await request.read())
        return web.Response()

    async with serving(look) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\nzzzz")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        await writer.wait_closed()
    assert came == [b"zzzz"]


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


class Line(asyncio.Transport):
    """Transport that keeps the bytes written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close


@asynccontextmanager
async def connected(**settings: Any) -> AsyncIterator[tuple[asyncio.Protocol, Line]]:
    """A connection that has been made, and whose task has not begun."""
    runner = make_runner(web.Application(), HttpSettings(GatewayId("us-1"), US, **settings))
    await runner.setup()
    assert runner.server is not None
    protocol, line = runner.server(), Line()
    protocol.connection_made(line)
    yield protocol, line
    protocol.connection_lost(None)
    await runner.cleanup()


@pytest.mark.parametrize("first", [b"G", b"GET / HTTP/1.1\r\nhost: x\r\n"])
async def test_headers_that_begin_before_their_connection_s_task_does_have_a_deadline_too(first: bytes) -> None:
    async with connected(headers_s=0.01) as (protocol, line):
        protocol.data_received(first)
        await until(lambda: line.is_closed)
        assert line.sent.startswith(b"HTTP/1.1 408 ")


async def test_a_request_that_is_whole_before_that_has_none() -> None:
    async with connected(headers_s=0.01) as (protocol, line):
        protocol.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await until(lambda: line.sent != b"")
        assert line.sent.startswith(b"HTTP/1.1 404 ")


async def test_one_that_never_says_anything_is_left() -> None:
    async with connected(idle_connection_s=0.01) as (_, line):
        await until(lambda: line.is_closed)
        assert line.sent == b""
