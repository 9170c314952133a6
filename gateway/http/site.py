"""A listening address whose TLS handshakes have a deadline; aiohttp's own would wait a minute for each."""

from __future__ import annotations

import asyncio
import ssl

from aiohttp import web

from gateway.http import aiohttp_internals

_TURNS_TO_SERVE = 3
"""A connection that was accepted becomes a transport, then a protocol that is told of it, then a task."""


async def hear_of_all_accepted(server: asyncio.Server) -> None:
    """Before it is closed: half a connection is one that Python 3.11 forgets to close, or that aiohttp waits for."""
    loop = asyncio.get_running_loop()
    for each in server.sockets:
        loop.remove_reader(each.fileno())
    for _ in range(_TURNS_TO_SERVE):
        await asyncio.sleep(0)


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
        if self.has_tls:
            await self.listen(ssl_handshake_timeout=self._handshake_s)
        else:
            await super().start()

    async def stop(self) -> None:
        if isinstance(self.server, asyncio.Server):  # uvloop's loses nothing
            await hear_of_all_accepted(self.server)
        await super().stop()
