"""Admin API for operators: metrics, state, explanations of decisions, drain. It shows no text of any request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from aiohttp import web
from msgspec import Struct

from gateway.door.health import Notes, Readiness, add_health_routes
from mesh.admin_server import OPERATOR, add_whoami, admin_middlewares, as_json, fault, needs
from mesh.operators import Operator, Operators
from mesh.operators_config import Role
from mesh.page.live import Sections
from mesh.page.serving import add_page

BODY_BYTES_MAX = 64 * 1024
GIVEN_AWAY = "another process is taking over from this one: repeat the request over a new connection"


class GatewayAdminSources(Struct, frozen=True):
    """Sources of the admin API's answers, and receivers of operators' commands. What is shown is JSON-able."""

    metrics: Callable[[], bytes]
    metrics_content_type: str
    state: Callable[[], dict[str, object]]
    readiness: Readiness
    explain: Callable[[str], Awaitable[object | None]]
    """Explains the request or decision with this id; None if the id is not known."""
    drain: Callable[[Operator], Awaitable[object | None]]
    """Drain this gateway; None if another process takes over, or has taken over."""
    undrain: Callable[[Operator], Awaitable[object | None]]
    """Undrain this gateway; None if the process is ending."""
    overview: Sections
    notes: Notes


def make_admin_app(
    sources: GatewayAdminSources, operators: Operators | None = None, hosts: Collection[str] | None = None
) -> web.Application:
    """Admin app. A caller who is none of the `operators` is only shown health; without `operators`, every caller counts
    as one. With `hosts`, requests for any host other than these and this machine are refused."""

    @needs(Role.LOOK)
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=sources.metrics(), headers={"content-type": sources.metrics_content_type})

    @needs(Role.LOOK)
    async def state(_: web.Request) -> web.Response:
        return as_json(sources.state())

    @needs(Role.LOOK)
    async def explain(request: web.Request) -> web.Response:
        explanation = await sources.explain(request.match_info["id"])
        if explanation is None:
            return fault(404, "the request or decision is unknown, or no longer remembered")
        return as_json(explanation)

    @needs(Role.DRAIN)
    async def drain(request: web.Request) -> web.Response:
        """Require JSON: a page in an operator's browser cannot send this content type without permission (CSRF)."""
        if request.content_type != "application/json":
            return fault(415, "send application/json")
        answer = await sources.drain(request[OPERATOR])
        return fault(409, GIVEN_AWAY) if answer is None else as_json(answer)

    @needs(Role.DRAIN)
    async def undrain(request: web.Request) -> web.Response:
        """Require JSON, for the same reason as `drain`."""
        if request.content_type != "application/json":
            return fault(415, "send application/json")
        answer = await sources.undrain(request[OPERATOR])
        if answer is None:
            return fault(
                409,
                "this process is shutting down and accepts no new requests: undrain the process started after it",
            )
        return as_json(answer)

    middlewares = admin_middlewares(operators or Operators(), hosts)
    app = web.Application(middlewares=middlewares, client_max_size=BODY_BYTES_MAX)
    app.router.add_get("/metrics", metrics)
    add_whoami(app)
    app.router.add_get("/admin/state", state)
    app.router.add_get("/admin/explain/{id}", explain)
    app.router.add_post("/admin/drain", drain)
    app.router.add_post("/admin/undrain", undrain)
    add_page(app, sources.overview)
    add_health_routes(app, sources.readiness, sources.notes)
    return app
