"""Servers on loopback that own their connections: leaving one closes all of them, even those that arrive meanwhile.

`asyncio.Server` does not: Python 3.11 loses a connection that it has accepted when `close` overtakes it, and does not
close a connection whose handler has not begun or leaves it open.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress

from aiohttp import web

from mesh.graceful_close import deliver_accepted

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]


@asynccontextmanager
async def listening(
    talk: Talk, *, tls: ssl.SSLContext | None = None, own: socket.socket | None = None
) -> AsyncIterator[int]:
    """Serve, and yield the port: each connection runs `talk`, and is closed after it. `own` is a bound socket to listen
    on, which is closed as well."""
    loop = asyncio.get_running_loop()
    running: list[asyncio.Task[None]] = []
    with ExitStack() as stack:
        own = stack.enter_context(own or socket.create_server(("127.0.0.1", 0)))
        own.setblocking(False)
        own.listen()
        async with asyncio.TaskGroup() as tasks:

            def accept() -> None:
                with suppress(BlockingIOError, ConnectionAbortedError):  # the caller has left already
                    connection, _ = own.accept()
                    stack.enter_context(connection).setblocking(False)
                    running.append(tasks.create_task(_converse(connection, talk, tls)))

            loop.add_reader(own, accept)
            try:
                yield own.getsockname()[1]
            finally:
                loop.remove_reader(own)
                for task in running:
                    task.cancel()


async def _converse(connection: socket.socket, talk: Talk, tls: ssl.SSLContext | None) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    with suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):  # the other side may leave at any time
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=tls)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            await talk(reader, writer)
            writer.close()
            await writer.wait_closed()
        finally:
            transport.abort()
            await asyncio.sleep(0)


async def knock(port: int, turns: int) -> socket.socket:
    """Connect, and give the loop so many turns to notice: at each number of turns, a server that is closed then is in
    another state."""
    caller = socket.create_connection(("127.0.0.1", port))
    for _ in range(turns):
        await asyncio.sleep(0)
    return caller


async def until_dropped(caller: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=caller)
    try:
        with suppress(ConnectionError):
            assert await reader.read() == b""
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


@asynccontextmanager
async def listening_protocols(
    make: Callable[[], asyncio.BaseProtocol], *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Listen until the block is left; yields the port. Connections are the protocols' own to close."""
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await deliver_accepted(server)
        server.close()


@asynccontextmanager
async def serving_http(runner: web.BaseRunner, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve the runner until the block is left; yields the port."""
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        yield runner.addresses[0][1]
    finally:
        await cleaned_up(runner)


async def cleaned_up(runner: web.BaseRunner) -> None:
    for site in runner.sites:
        assert isinstance(site._server, asyncio.Server)
        await deliver_accepted(site._server)
    await runner.cleanup()
