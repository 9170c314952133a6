"""Number of replicas wanted, as JSON, for operators and for autoscalers that do not read Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from gateway.ground.admin_server import as_json, needs
from gateway.ground.operators_config import Role


def add_scaling_route(app: web.Application, describe: Callable[[], object]) -> None:
    """`describe` returns a JSON-able value."""

    @needs(Role.LOOK)
    async def scaling(_: web.Request) -> web.Response:
        return as_json(describe())

    app.router.add_get("/admin/scaling", scaling)
