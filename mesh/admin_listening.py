"""Listens for operators with aiohttp, and adds two bounds that aiohttp lacks: the number of connections, and the time
until a connection's first request has arrived. It reads no request.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import cast

from aiohttp import web
from msgspec import Struct

from mesh.listening import named_by
from mesh.tls import HttpTls
from mesh.values import Address

_END_OF_HEADERS = b"\r\n\r\n"
_GOODBYE_S = 1.0
"""Seconds that a refused client has to read the reason."""
_FULL = b'{"error": "too many connections to this address are open already"}'
_TURNED_AWAY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nconnection: close\r\nretry-after: 1\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_FULL), _FULL)
)


class ListenLimits(Struct, frozen=True):
    connections_max: int = 256
    first_request_s: float = 10.0
    """Seconds from the start of a connection until the headers of its first request have arrived. Between requests
    aiohttp's own bound applies."""


async def listen_for_operators(
    stack: AsyncExitStack,
    app: web.Application,
    address: Address,
    tls: HttpTls | None,
    limits: ListenLimits | None = None,
) -> Address:
    """Listen until the stack is left. Returns the real address, also where the system chose the port. Raises
    OSError."""
    limits = limits or ListenLimits()
    runner = operators_runner(app)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    assert runner.server is not None, "it was set up"
    door = OperatorsServer(runner.server, limits)
    handshake_s = None if tls is None else limits.first_request_s
    context = None if tls is None else tls.context
    with named_by("listen.admin", address):
        listening = await asyncio.get_running_loop().create_server(
            door, address.host, address.port, ssl=context, ssl_handshake_timeout=handshake_s
        )
    stack.callback(door.close)
    stack.callback(listening.close)
    return Address(address.host, listening.sockets[0].getsockname()[1])


def operators_runner(app: web.Application) -> web.AppRunner:
    """Runner of an app for operators, to be set up. A caller's leaving cancels its handler."""
    return web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)


class OperatorsServer:
    """Factory of a protocol for each incoming connection."""

    is_leaving = False
    """True once another process takes new connections; each open one ends with its next answer."""

    def __init__(self, server: web.Server, limits: ListenLimits) -> None:
        self.server = server
        self.limits = limits
        self.open: set[_Guarded] = set()
        self.turned_away: set[_TurnedAway] = set()

    def __call__(self) -> asyncio.Protocol:
        return _Guarded(self) if len(self.open) < self.limits.connections_max else _TurnedAway(self)

    @property
    def open_connections(self) -> int:
        return len(self.open)

    @property
    def has_unmade(self) -> bool:
        """True while a TLS handshake may be under way: not known here, and not waited for."""
        return False

    def close(self) -> None:
        """Cut the refused connections; aiohttp ends those that it serves."""
        for each in tuple(self.turned_away):
            each.cut()


class _Guarded(asyncio.Protocol):
    """Passes a connection on to aiohttp, and aborts it where its first request is late."""

    def __init__(self, door: OperatorsServer) -> None:
        self._door = door
        self._inner = door.server()
        self._tail = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)  # uvloop's transport does not inherit from it
        self._door.open.add(self)
        self._timer = asyncio.get_running_loop().call_later(self._door.limits.first_request_s, stream.abort)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._timer is not None:
            self._look_for_end(data)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        self._inner.eof_received()
        return None

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._door.open.discard(self)
        self._stop_timer()
        self._inner.connection_lost(exc)

    def _look_for_end(self, data: bytes) -> None:
        if _END_OF_HEADERS in self._tail + data:
            self._stop_timer()
        self._tail = (self._tail + data)[1 - len(_END_OF_HEADERS) :]

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _TurnedAway(asyncio.Protocol):
    """Refuses a connection with a reason and closes it. Beyond `connections_max` refused ones, connections are cut
    without an answer."""

    def __init__(self, door: OperatorsServer) -> None:
        self._door = door
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)
        if len(self._door.turned_away) >= self._door.limits.connections_max:
            transport.abort()
            return
        self._door.turned_away.add(self)
        self._timer = asyncio.get_running_loop().call_later(_GOODBYE_S, self.cut)
        transport.write(_TURNED_AWAY)
        if transport.can_write_eof():
            transport.write_eof()

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: ARG002 - asyncio's own signature
        self._door.turned_away.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()
