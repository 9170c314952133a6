"""For operators: metrics and state, on a listener of its own. Nothing here changes anything or shows any text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from aiohttp import web

from gateway.http.health import Readiness, add_health_routes


@dataclass(frozen=True, slots=True)
class AdminSources:
    """Where the admin pages get what they show."""

    metrics: Callable[[], bytes]
    metrics_content_type: str
    state: Callable[[], dict[str, object]]
    """JSON-able."""
    readiness: Readiness


def make_admin_app(sources: AdminSources) -> web.Application:
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=sources.metrics(), headers={"content-type": sources.metrics_content_type})

    async def state(_: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(sources.state()), headers={"content-type": "application/json"})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/admin/state", state)
    add_health_routes(app, sources.readiness)
    return app
