"""Tells balancers and operators whether this process is alive and ready for traffic; the caller gives the reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aiohttp import web

Readiness = Callable[[], str]
"""Empty if ready, else the reason why not. It must not depend on the controller, nor directly on engines: the mesh
works without them."""
Notes = Callable[[], Mapping[str, str]]
"""Notes for operators about a gateway that is ready all the same."""


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
