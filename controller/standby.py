"""A standby controller: it shows operators and monitoring that it waits, and does nothing else.

Gateways find no listener here, and connect to the leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from aiohttp import web
from structlog.typing import FilteringBoundLogger

from controller.store.store import StoreError, StoreTaken
from mesh.admin_server import admin_middlewares, fault, needs
from mesh.operators import Operators
from mesh.operators_config import Role
from mesh.page.files import add_files

_SECOND_NS = 1_000_000_000


class StandbyEnded(Exception):
    """The controller was told to stop before it led."""


class Standby:
    """Waits between two attempts to lead: `wait` is passed to `lead`."""

    def __init__(
        self,
        look_interval_ns: int,
        stop: asyncio.Event,
        log: FilteringBoundLogger,
        on_begin: Callable[[], Awaitable[None]],
    ) -> None:
        """`on_begin` is awaited at the first wait."""
        self.reason = ""
        """Reason why the controller does not lead, in words."""
        self._look_s = look_interval_ns / _SECOND_NS
        self._stop = stop
        self._log = log
        self._on_begin = on_begin

    async def wait(self, error: StoreError) -> None:
        """Note the reason, and wait until the next attempt. Raises StandbyEnded."""
        is_first, before = not self.reason, self.reason
        self.reason = str(error)
        if self.reason != before:
            if isinstance(error, StoreTaken):
                self._log.info("standby_waiting", reason=self.reason)
            else:
                self._log.error("leadership_attempt_failed", reason=self.reason)
        if is_first:
            await self._on_begin()
        try:
            async with asyncio.timeout(self._look_s):
                await self._stop.wait()
        except TimeoutError:
            return
        raise StandbyEnded


def make_standby_app(
    reason: Callable[[], str],
    metrics: Callable[[], bytes],
    metrics_content_type: str,
    operators: Operators,
    hosts: Collection[str] | None,
) -> web.Application:
    """Make the admin application of a standby controller: it is alive and not ready, and names the leader."""

    async def live(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def ready(_: web.Request) -> web.Response:
        return web.json_response({"status": "standing by", "reason": reason()}, status=503)

    @needs(Role.LOOK)
    async def page(_: web.Request) -> web.Response:
        return web.Response(body=metrics(), headers={"content-type": metrics_content_type})

    @needs(Role.LOOK)
    async def other(_: web.Request) -> web.Response:
        return fault(503, f"this controller stands by, and nothing has changed: {reason()}")

    app = web.Application(middlewares=admin_middlewares(operators, hosts))
    app.router.add_get("/health", live)
    app.router.add_get("/ready", ready)
    app.router.add_get("/metrics", page)
    add_files(app)
    app.router.add_route("*", "/{path:.*}", other)
    return app
