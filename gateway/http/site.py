"""A listening address whose TLS handshakes have a deadline; aiohttp's own would wait a minute for each."""

from __future__ import annotations

import asyncio
import ssl

from aiohttp import web


class Site(web.TCPSite):
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
        if self._ssl_context is None:
            await super().start()
            return
        await web.BaseSite.start(self)
        assert self._runner.server is not None, "the runner was set up"
        self._server = await asyncio.get_running_loop().create_server(
            self._runner.server,
            self._host,
            self._port,
            ssl=self._ssl_context,
            backlog=self._backlog,
            reuse_port=self._reuse_port,
            ssl_handshake_timeout=self._handshake_s,
        )
