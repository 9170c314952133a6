"""Tells balancers and operators whether this process lives and wants traffic; what makes it so is asked of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aiohttp import web

Readiness = Callable[[], str]
"""Empty when ready, else why not. It must not depend on the controller, nor by itself on engines: the mesh lives
without them."""
Notes = Callable[[], Mapping[str, str]]
"""What is worth knowing of a gateway that is ready all the same."""


def add_health_routes(app: web.Application, readiness: Readiness, notes: Notes | None = None) -> None:
    async def live(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def ready(_: web.Request) -> web.Response:
        reason = readiness()
        if reason:
            return web.json_response({"status": "not ready", "reason": reason}, status=503)
        return web.json_response({"status": "ready", **(notes() if notes is not None else {})})

    app.router.add_get("/health", live)
    app.router.add_get("/ready", ready)
