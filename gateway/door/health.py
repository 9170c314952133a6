"""Tells balancers and operators whether this process is alive and ready for traffic; the caller gives the reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aiohttp import web

Readiness = Callable[[], str]
"""Empty if ready, else the reason why not. It must not depend on the controller, nor directly on engines: the mesh
works without them."""
Notes = Callable[[], Mapping[str, str]]
"""Notes for operators about a gateway that is ready all the same."""


def live_page() -> dict[str, str]:
    return {"status": "ok"}


def ready_page(reason: str, notes: Mapping[str, str] | None = None) -> tuple[int, dict[str, str]]:
    """Status and page about readiness. `reason`: why the gateway is not ready; empty if it is."""
    if reason:
        return 503, {"status": "not ready", "reason": reason}
    return 200, {"status": "ready", **(notes or {})}


def add_health_routes(app: web.Application, readiness: Readiness, notes: Notes) -> None:
    """Add /health and /ready to the operators' pages."""

    async def live(_: web.Request) -> web.Response:
        return web.json_response(live_page())

    async def ready(_: web.Request) -> web.Response:
        reason = readiness()
        status, page = ready_page(reason, None if reason else notes())
        return web.json_response(page, status=status)

    app.router.add_get("/health", live)
    app.router.add_get("/ready", ready)
