"""Listens for clients and operators until a context is left, and lets answers that are complete go out first."""

from __future__ import annotations

from contextlib import AsyncExitStack
from ssl import SSLContext

from aiohttp import web

from gateway.app.desk import Desk
from gateway.ground.listening import named_by
from gateway.ground.values import Address
from gateway.http.app import make_runner
from gateway.http.settings import HttpSettings
from gateway.http.site import Site
from gateway.request.driver import Driver

_BACKLOG = 1024


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
) -> Address:
    """Listen until the stack is left. Returns the real address, also where the system chose the port. Raises OSError,
    which names the key of the region file that says where."""
    runner = make_runner(
        app,
        settings,
        lambda error: desk.log.error("answering a client failed", exc_info=error),
        desk.refusals.take,
    )
    await runner.setup()
    stack.push_async_callback(_stop_listening, runner, desk.driver)
    handshake_s = settings.headers_s
    site = Site(
        runner,
        address.host,
        address.port,
        backlog=_BACKLOG,
        tls=tls,
        handshake_s=handshake_s,
        reuse_port=reuse_port,
    )
    with named_by(key, address):
        await site.start()
    return Address(address.host, runner.addresses[0][1])


async def _stop_listening(runner: web.AppRunner, driver: Driver) -> None:
    """Answers that are complete go out; requests that still run have had their time and are cut off."""
    for site in tuple(runner.sites):
        await site.stop()
    if driver.open_requests and runner.server is not None:
        for connection in runner.server.connections:
            connection.force_close()
    await runner.cleanup()
