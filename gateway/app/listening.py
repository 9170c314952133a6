"""Listens for clients and operators until a context is left, and lets complete answers be sent first."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from ssl import SSLContext
from typing import Protocol

from aiohttp import web

from gateway.app.observed_core import ObservedCore
from gateway.door.api import ClientApi
from gateway.door.settings import HttpSettings
from gateway.http1.server import HttpServer, ServerLimits
from mesh.admin_listening import ListenLimits, OperatorsServer, operators_runner
from mesh.graceful_close import deliver_accepted
from mesh.listening import named_by
from mesh.values import Address

_BACKLOG = 1024
_LOOK_S = 0.02
_CLOSE_WAIT_S = 1.0
"""Seconds for which answers that are complete may still be sent to clients that read slowly."""


class PortServer(Protocol):
    """Server of one port: makes the protocol of each connection."""

    is_leaving: bool

    def __call__(self) -> asyncio.Protocol: ...

    @property
    def open_connections(self) -> int: ...

    @property
    def has_unmade(self) -> bool:
        """True while a TLS handshake may be under way, which does not count as a connection yet."""
        ...


class ListeningSockets:
    """Listening sockets for clients or for operators. They may be closed while open connections are served, and opened
    again."""

    def __init__(
        self,
        server: PortServer,
        asked: Address,
        *,
        tls: SSLContext | None,
        handshake_s: float,
        reuse_port: bool = False,
    ) -> None:
        self.asked = asked
        """Address in the region file."""
        self.address = asked
        """Address with the port that the system chose."""
        self._server = server
        self._tls = tls
        self._handshake_s = handshake_s
        self._reuse_port = reuse_port
        self._listening: list[asyncio.Server] = []
        self._shut: list[socket.socket] = []
        self._shut_at_s = 0.0

    async def open(self, inherited: Sequence[socket.socket]) -> None:
        """Listen, on inherited sockets where there are any. Raises OSError."""
        handshake_s = None if self._tls is None else self._handshake_s
        for each in inherited or (None,):
            where = (
                {"host": self.asked.host, "port": self.asked.port, "reuse_port": self._reuse_port or None}
                if each is None
                else {"sock": each}
            )
            listening = await asyncio.get_running_loop().create_server(
                self._server,
                ssl=self._tls,
                ssl_handshake_timeout=handshake_s,
                backlog=_BACKLOG,
                **where,
            )
            self._listening.append(listening)
        self.address = Address(self.asked.host, self._listening[0].sockets[0].getsockname()[1])

    def sockets(self) -> list[socket.socket]:
        """Copies of the sockets, for the caller to close."""
        own = [each for listening in self._listening for each in listening.sockets]
        return [socket.socket(fileno=os.dup(each.fileno())) for each in own]

    async def shut(self) -> None:
        """Stop accepting; new connections wait in the system's backlog."""
        self._shut = self.sockets()
        self._shut_at_s = asyncio.get_running_loop().time()
        await self.close()

    async def close(self) -> None:
        """Stop listening. Open connections go on."""
        listening, self._listening = self._listening, []
        for each in listening:
            if isinstance(each, asyncio.Server):  # uvloop's loses no connection
                await deliver_accepted(each)
            each.close()

    async def reopen(self) -> None:
        if not self._listening:
            await self.open(self._shut)
            self._shut = []

    def leave(self) -> None:
        """Leave new connections to another process. Clients still connected are told to reconnect with their next
        answer."""
        for each in self._shut:
            each.close()
        self._shut = []
        self._server.is_leaving = True

    async def until_empty(self) -> None:
        """Wait until no connection is open, after `leave`."""
        while self._server.open_connections or self._may_shake_hands():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(_LOOK_S)

    def _may_shake_hands(self) -> bool:
        """True while a TLS handshake may be under way; failed handshakes cannot be told from it."""
        is_recent = asyncio.get_running_loop().time() < self._shut_at_s + self._handshake_s
        return is_recent and self._server.has_unmade


async def listen_for_clients(
    stack: AsyncExitStack,
    observed: ObservedCore,
    api: ClientApi,
    settings: HttpSettings,
    address: Address,
    *,
    tls: SSLContext | None,
    reuse_port: bool = False,
    inherited: Sequence[socket.socket] = (),
) -> ListeningSockets:
    """Listen until the stack is left. Raises OSError, which names the region file's key of the address."""
    server = HttpServer(api, server_limits(settings), on_turn=observed.driver.run)
    stack.callback(api.close)
    stack.push_async_callback(stop_server, server, lambda: observed.driver.open_requests)
    door = ListeningSockets(server, address, tls=tls, handshake_s=settings.headers_s, reuse_port=reuse_port)
    stack.push_async_callback(door.close)
    with named_by("listen.http", address):
        await door.open(inherited)
    return door


async def listen_for_operators(
    stack: AsyncExitStack,
    app: web.Application,
    limits: ListenLimits,
    address: Address,
    *,
    tls: SSLContext | None,
    inherited: Sequence[socket.socket] = (),
) -> ListeningSockets:
    """Listen until the stack is left. Raises OSError, which names the region file's key of the address."""

    async def tell_to_reconnect(_: web.Request, response: web.StreamResponse) -> None:
        if server.is_leaving:
            response.headers["connection"] = "close"
            response.force_close()

    app.on_response_prepare.append(tell_to_reconnect)
    runner = operators_runner(app)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    assert runner.server is not None, "it was set up"
    server = OperatorsServer(runner.server, limits)
    stack.callback(server.close)
    door = ListeningSockets(server, address, tls=tls, handshake_s=limits.first_request_s)
    stack.push_async_callback(door.close)
    with named_by("listen.admin", address):
        await door.open(inherited)
    return door


def server_limits(settings: HttpSettings) -> ServerLimits:
    return ServerLimits(
        connections_max=settings.connections_max,
        headers_bytes_max=settings.headers_bytes_max,
        header_line_bytes_max=settings.header_line_bytes_max,
        header_count_max=settings.header_count_max,
        headers_s=settings.headers_s,
        idle_s=settings.idle_connection_s,
        stall_s=settings.stall_s,
        silence_s=settings.silence_s,
    )


async def stop_server(server: HttpServer, open_requests: Callable[[], int]) -> None:
    """Close all connections. Complete answers are sent; requests that still run have had their time and are cut
    off."""
    server.close(at_once=bool(open_requests()))
    with suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_WAIT_S):
            await server.until_empty()
    server.close(at_once=True)
    await server.until_empty()
