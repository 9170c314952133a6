"""A listening address whose TLS handshakes have a deadline; aiohttp's own would wait a minute for each."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Sequence

from aiohttp import web

from gateway.ground.accepting import hear_of_all_accepted
from gateway.http import aiohttp_internals


class Site(aiohttp_internals.Site):
    """Takes connections for a runner. Until its handshake is over, a connection is not counted by anybody else."""

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
        """With a socket, on that one, which listens already."""
        if self.has_tls:
            await self.listen(sock, ssl_handshake_timeout=self._handshake_s)
        else:
            await self.listen(sock)

    def sockets(self) -> list[socket.socket]:
        """Copies of those that it listens on, for the caller to close."""
        sockets: Sequence[socket.socket] = getattr(self.server, "sockets", ())  # of asyncio's and uvloop's own alike
        return [socket.socket(fileno=os.dup(each.fileno())) for each in sockets]

    async def stop(self) -> None:
        if isinstance(self.server, asyncio.Server):  # uvloop's loses nothing
            await hear_of_all_accepted(self.server)
        await super().stop()
