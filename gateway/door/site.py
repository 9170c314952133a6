"""Listening address with a time-out for TLS handshakes; aiohttp's own waits a minute for each."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Sequence

from aiohttp import web

from gateway.door import aiohttp_internals
from mesh.accepting import hear_of_all_accepted


class Site(aiohttp_internals.Site):
    """Accepts connections for a runner. A connection is not counted elsewhere until its handshake is over."""

    __slots__ = ("_handshake_s",)

    def __init__(
        self,
        runner: web.AppRunner,
        host: str,
        port: int,
        *,
        backlog: int,
        tls: ssl.SSLContext | None,
        handshake_s: float,
        reuse_port: bool = False,
    ) -> None:
        super().__init__(runner, host, port, backlog=backlog, ssl_context=tls, reuse_port=reuse_port or None)
        self._handshake_s = handshake_s

    async def start(self) -> None:
        await self.start_on(None)

    async def start_on(self, sock: socket.socket | None) -> None:
        """Listen, on the given socket if there is one, which must be listening already."""
        if self.has_tls:
            await self.listen(sock, ssl_handshake_timeout=self._handshake_s)
        else:
            await self.listen(sock)

    def sockets(self) -> list[socket.socket]:
        """Copies of the listening sockets, for the caller to close."""
        sockets: Sequence[socket.socket] = getattr(self.server, "sockets", ())  # asyncio's and uvloop's have it
        return [socket.socket(fileno=os.dup(each.fileno())) for each in sockets]

    async def stop(self) -> None:
        if isinstance(self.server, asyncio.Server):  # uvloop's loses no connection
            await hear_of_all_accepted(self.server)
        await super().stop()
