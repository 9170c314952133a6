"""HTTP API for operators: health, metrics, state, the audit log, and orders. It decides nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

import msgspec
from aiohttp import web
from msgspec import Struct

from controller.decision_queries import TooManyQuestions
from controller.history import SHOWN_MAX, AuditEntry
from controller.operations import NotKnown, NotWritten, OrderAnswer, OrderBody, OrderForbidden
from controller.orders import OrderRefused
from mesh.admin_server import OPERATOR, add_whoami, admin_middlewares, as_json, fault, needs
from mesh.operators import Operator, Operators
from mesh.operators_config import Role
from mesh.page.live import Sections
from mesh.page.serving import add_page

BODY_BYTES_MAX = 64 << 20
"""Largest request body: an import holds everything that every gateway announced."""


class ControllerAdminSources(Struct, frozen=True):
    """Sources of the admin pages' content, all JSON-able, and the receiver of orders."""

    metrics: Callable[[], bytes]
    metrics_content_type: str
    state: Callable[[], dict[str, object]]
    readiness: Callable[[], str]
    """Reason why the controller is not ready; empty when it is."""
    order: Callable[[OrderBody, str, Operator], Awaitable[OrderAnswer]]
    history: Callable[[int], list[AuditEntry]]
    export: Callable[[], dict[str, str]]
    overview: Sections
    explain: Callable[[str], Awaitable[object | None]]
    """Explains a request or a decision by its id, as the gateways know it; None where no gateway does. Raises
    TooManyQuestions."""


def make_admin_app(
    sources: ControllerAdminSources, operators: Operators | None = None, hosts: Collection[str] | None = None
) -> web.Application:
    async def live(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def ready(_: web.Request) -> web.Response:
        reason = sources.readiness()
        if reason:
            return web.json_response({"status": "not ready", "reason": reason}, status=503)
        return web.json_response({"status": "ready"})

    @needs(Role.LOOK)
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=sources.metrics(), headers={"content-type": sources.metrics_content_type})

    @needs(Role.LOOK)
    async def state(_: web.Request) -> web.Response:
        return as_json(sources.state())

    @needs(Role.LOOK)
    async def history(request: web.Request) -> web.Response:
        count = request.query.get("count", "50")
        if not count.isdecimal() or not 0 < int(count) <= SHOWN_MAX:
            return fault(400, f"count is a number from 1 to {SHOWN_MAX}")
        return as_json(sources.history(int(count)))

    @needs(Role.LOOK)
    async def explain(request: web.Request) -> web.Response:
        try:
            explanation = await sources.explain(request.match_info["id"])
        except TooManyQuestions as problem:
            return fault(503, str(problem))
        if explanation is None:
            return fault(404, "no gateway that is attached knows a request or decision by that id, or none any longer")
        return as_json(explanation)

    @needs(Role.LOOK)
    async def export(_: web.Request) -> web.Response:
        return as_json(sources.export())

    @needs(Role.LOOK)
    async def order(request: web.Request) -> web.Response:
        """Take an order. The role required depends on the order; `look` is enough for a dry run. A page in an
        operator's browser cannot send this content type unasked."""
        if request.content_type != "application/json":
            return fault(415, "send application/json")
        try:
            body = msgspec.json.decode(await request.read(), type=OrderBody)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            return fault(400, str(error))
        try:
            return as_json(await sources.order(body, request.remote or "", request[OPERATOR]))
        except OrderForbidden as forbidden:
            return fault(403, str(forbidden))
        except OrderRefused as refused:
            return fault(409, str(refused))
        except NotKnown as problem:
            return fault(504, f"it may have changed, and will have once the store answers: {problem}")
        except NotWritten as problem:
            return fault(503, f"nothing has changed, since it could not be written: {problem}")

    middlewares = admin_middlewares(operators or Operators(), hosts)
    app = web.Application(middlewares=middlewares, client_max_size=BODY_BYTES_MAX)
    app.router.add_get("/health", live)
    app.router.add_get("/ready", ready)
    app.router.add_get("/metrics", metrics)
    add_whoami(app)
    app.router.add_get("/admin/state", state)
    app.router.add_get("/admin/history", history)
    app.router.add_get("/admin/export", export)
    app.router.add_get("/admin/explain/{id}", explain)
    app.router.add_post("/admin/orders", order)
    add_page(app, sources.overview)
    return app
