"""Listens for clients and operators until a context is left, and lets complete answers be sent first."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from ssl import SSLContext

from aiohttp import web

from gateway.app.desk import Desk
from gateway.door.app import make_runner
from gateway.door.connections import GuardedRunner
from gateway.door.settings import HttpSettings
from gateway.door.site import Site
from gateway.request.driver import Driver
from mesh.listening import named_by
from mesh.values import Address

_BACKLOG = 1024
_LOOK_S = 0.02


class Door:
    """Listening sockets for clients or for operators. They may be closed while open connections are served, and opened
    again."""

    def __init__(
        self,
        runner: GuardedRunner,
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
        self._runner = runner
        self._tls = tls
        self._handshake_s = handshake_s
        self._reuse_port = reuse_port
        self._shut: list[socket.socket] = []
        self._shut_at_s = 0.0

    async def open(self, inherited: Sequence[socket.socket]) -> None:
        """Listen, on inherited sockets where there are any. Raises OSError."""
        for each in inherited or (None,):
            await self._site().start_on(each)
        self.address = Address(self.asked.host, self._runner.addresses[0][1])

    def sockets(self) -> list[socket.socket]:
        """Copies of the sockets, for the caller to close."""
        return [each for site in self._sites for each in site.sockets()]

    async def shut(self) -> None:
        """Stop accepting; new connections wait in the system's backlog."""
        self._shut = self.sockets()
        self._shut_at_s = asyncio.get_running_loop().time()
        for site in self._sites:
            await site.stop()

    async def reopen(self) -> None:
        if not self._sites:
            await self.open(self._shut)
            self._shut = []

    def leave(self) -> None:
        """Leave new connections to another process. Clients still connected are told to reconnect with their next
        answer."""
        for each in self._shut:
            each.close()
        self._shut = []
        self._runner.guarded.is_leaving = True

    async def until_empty(self) -> None:
        """Wait until no connection is open, after `leave`."""
        while self._runner.guarded.open_connections or self._may_shake_hands():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(_LOOK_S)

    def _may_shake_hands(self) -> bool:
        """True while a TLS handshake may be under way, which does not count as a connection yet; failed handshakes
        cannot be told from it."""
        is_recent = asyncio.get_running_loop().time() < self._shut_at_s + self._handshake_s
        return is_recent and self._runner.guarded.has_unmade

    @property
    def _sites(self) -> list[Site]:
        return [each for each in self._runner.sites if isinstance(each, Site)]

    def _site(self) -> Site:
        return Site(
            self._runner,
            self.asked.host,
            self.asked.port,
            backlog=_BACKLOG,
            tls=self._tls,
            handshake_s=self._handshake_s,
            reuse_port=self._reuse_port,
        )


async def listen(
    stack: AsyncExitStack,
    desk: Desk,
    app: web.Application,
    settings: HttpSettings,
    address: Address,
    *,
    key: str,
    tls: SSLContext | None,
    reuse_port: bool = False,
    inherited: Sequence[socket.socket] = (),
) -> Door:
    """Listen until the stack is left. Raises OSError, which names the region file's key of the address."""
    runner = make_runner(
        app,
        settings,
        lambda error: desk.log.error("http_handler_failed", exc_info=error),
        desk.refusals.take,
    )
    await runner.setup()
    stack.push_async_callback(_stop_listening, runner, desk.driver)
    door = Door(runner, address, tls=tls, handshake_s=settings.headers_s, reuse_port=reuse_port)
    with named_by(key, address):
        await door.open(inherited)
    return door


async def _stop_listening(runner: web.AppRunner, driver: Driver) -> None:
    """Stop listening. Complete answers are sent; requests that still run have had their time and are cut off."""
    for site in tuple(runner.sites):
        await site.stop()
    if driver.open_requests and runner.server is not None:
        for connection in runner.server.connections:
            connection.force_close()
    await runner.cleanup()
