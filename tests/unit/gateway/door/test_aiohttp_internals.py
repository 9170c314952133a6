"""Behaviour that the gateway expects of each member of aiohttp that aiohttp does not document, on connections over
sockets.
"""

from __future__ import annotations

import asyncio
import inspect
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from packaging.requirements import Requirement

from gateway.door import aiohttp_internals as internals
from gateway.door import connections, site
from tests.support.gateways import until

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
UPLOAD = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"
HEADERS_MAX = 7
Handler = Callable[[web.Request], Any]


class Server(internals.Server):
    """Plainest possible server; it keeps its connections, for the test to look at."""

    def __init__(self, plain: web.Server) -> None:
        super().__init__(plain, plain.request_handler)
        self.made: list[Connection] = []

    def __call__(self) -> web.RequestHandler:
        self.made.append(Connection(self, loop=self.loop, **self.connection_options))
        return self.made[-1]


class Connection(internals.Connection):
    __slots__ = ("errors", "one_task")

    def __init__(self, server: Server, **options: Any) -> None:
        super().__init__(server, **options)
        self.one_task = server
        self.errors: list[BaseException | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.take_no_task_per_request(self.one_task)

    def handle_error(self, *arguments: Any, **options: Any) -> web.StreamResponse:
        self.errors.append(next((each for each in arguments if isinstance(each, Exception)), options.get("exc")))
        return web.Response(status=400)


class Runner(internals.Runner):
    def stand_in(self, plain: web.Server) -> web.Server:
        return Server(plain)


class Client:
    """One connection to the server, from both ends."""

    def __init__(self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server = server
        self.reader = reader
        self.writer = writer

    @property
    def connection(self) -> Connection:
        return self.server.made[0]

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()


@asynccontextmanager
async def talking(handler: Handler) -> AsyncIterator[Client]:
    app = web.Application()
    app.router.add_route("*", "/", handler)
    runner = Runner(app, max_headers=HEADERS_MAX, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await internals.Site(runner, "127.0.0.1", 0).listen()
        assert isinstance(runner.server, Server), "the server of our making is the one that runs"
        reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
        client = Client(runner.server, reader, writer)
        await until(lambda: bool(client.server.made))
        yield client
        writer.close()
        await writer.wait_closed()
    finally:
        await runner.cleanup()


async def hang(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("nothing ends this but a cancellation")


async def answer(_: web.Request) -> web.Response:
    return web.Response()


async def test_a_server_takes_over_the_options_of_the_one_that_it_stands_in_for() -> None:
    async with talking(answer) as client:
        assert client.connection.max_headers == HEADERS_MAX
        assert client.server.loop is asyncio.get_running_loop()


async def test_open_connections_are_counted_until_they_are_gone() -> None:
    async with talking(answer) as client:
        assert client.server.open_connections == 1
        client.writer.close()
        await until(lambda: client.server.open_connections == 0)


async def test_a_connection_waits_until_a_request_has_come_in_whole() -> None:
    go_on = asyncio.Event()

    async def hang(_: web.Request) -> web.Response:
        await go_on.wait()
        return web.Response()

    async with talking(hang) as client:
        await until(lambda: client.connection.waits_for_request)
        await client.say(GET[:-2])
        await until(lambda: client.connection.waits_for_request)
        await client.say(GET[-2:])
        await until(lambda: not client.connection.waits_for_request)
        go_on.set()
        await client.reader.readuntil(b"\r\n\r\n")
        await until(lambda: client.connection.waits_for_request)


async def test_requests_run_in_the_task_of_their_connection() -> None:
    tasks: list[asyncio.Task[Any] | None] = []

    async def look(_: web.Request) -> web.Response:
        tasks.append(asyncio.current_task())
        return web.Response()

    async with talking(look) as client:
        for _ in range(2):
            await client.say(GET)
            await client.reader.readuntil(b"\r\n\r\n")
    own_tasks_cost_turns = hasattr(client.connection._loop, "create_task") and not hasattr(
        asyncio, "eager_task_factory"
    )
    assert (tasks[0] is tasks[1]) == own_tasks_cost_turns


async def test_many_requests_ahead_are_too_many() -> None:
    async with talking(hang) as client:
        await client.say(GET)
        await until(lambda: not client.connection.waits_for_request)
        assert not client.connection.is_too_far_ahead, "one may follow another"
        await client.say(GET * 1000)
        await until(lambda: client.connection.is_too_far_ahead)


async def test_a_body_that_is_not_read_is_no_request_ahead() -> None:
    async with talking(hang) as client:
        client.writer.write(GET.replace(b"GET", b"PUT") + UPLOAD + bytes(900_000))
        await until(lambda: client.connection.is_too_far_ahead)
    async with talking(hang) as client:
        client.writer.write(UPLOAD + bytes(900_000))
        await until(lambda: client.connection._reading_paused)
        assert not client.connection.is_too_far_ahead


async def test_after_an_answer_that_went_out_beneath_it_the_connection_goes_on() -> None:
    async def write(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        return internals.sent_answer(keep_alive=True)

    async with talking(write) as client:
        for _ in range(2):
            await client.say(GET)
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 204 No Content\r\n\r\n"


async def test_or_ends_if_the_answer_says_so() -> None:
    async def write(_: web.Request) -> web.StreamResponse:
        return internals.sent_answer(keep_alive=False)

    async with talking(write) as client:
        await client.say(GET)
        assert await client.reader.read() == b""


@pytest.mark.parametrize(
    ("request_bytes", "is_about_size", "is_about_value"),
    [
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (HEADERS_MAX + 1) + b"\r\n", True, False),
        (b"GET / HTTP/1.1\r\na: " + b"b" * 10_000 + b"\r\n\r\n", True, False),
        (b"GET /" + b"b" * 10_000 + b" HTTP/1.1\r\n\r\n", True, False),
        (b"GET / HTTP/1.1\r\na b: c\r\n\r\n", False, False),
        (b"GET / HTTP/1.1\r\na: b\x01c\r\n\r\n", False, True),
        (b"GET / HTTP/1.1\r\na: b\x7fc\r\n\r\n", False, True),
    ],
)
async def test_what_is_wrong_with_headers_is_told_apart(
    request_bytes: bytes, is_about_size: bool, is_about_value: bool
) -> None:
    async with talking(answer) as client:
        await client.say(request_bytes)
        await until(lambda: bool(client.connection.errors))
        (error,) = client.connection.errors
    assert isinstance(error, HttpProcessingError)
    assert internals.is_about_size(error) is is_about_size
    assert internals.is_about_header_value(error) is is_about_value


def test_the_date_is_http_s() -> None:
    assert internals.http_date().endswith(" GMT")
    assert parsedate_to_datetime(internals.http_date()).tzinfo is UTC


def test_the_version_is_the_one_that_this_was_tested_with() -> None:
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    (pin,) = [each for each in map(Requirement, project["dependencies"]) if each.name == "aiohttp"]
    assert str(pin.specifier) == f"=={version('aiohttp')}"


def names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from names_in(each)


def private_names(cls: type) -> set[str]:
    """Private names that a class of aiohttp defines or uses."""
    functions = [each for _, each in inspect.getmembers(cls, inspect.isfunction)]
    used = {name for each in functions for name in names_in(each.__code__)} | set(dir(cls))
    return {name for name in used if name.startswith("_") and not name.startswith("__")}


@pytest.mark.parametrize("theirs", [web.AppRunner, web.Server, web.RequestHandler, web.TCPSite])
def test_nobody_else_names_a_private_member(theirs: type) -> None:
    classes = [each for module in (connections, site) for _, each in inspect.getmembers(module, inspect.isclass)]
    (ours,) = [each for each in classes if issubclass(each, theirs) and each.__module__ != internals.__name__]
    named = {name for each in vars(ours).values() if inspect.isfunction(each) for name in names_in(each.__code__)}
    assert not named & private_names(theirs)
