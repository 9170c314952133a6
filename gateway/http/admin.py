"""For operators: metrics, state, why a request ran where it did, and the lockdown. It shows no text of any request."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from gateway.ground.values import Address
from gateway.http.entrance import credential_of
from gateway.http.health import HEALTH_PATHS, Notes, Readiness, add_health_routes

BODY_BYTES_MAX = 64 * 1024


class LockdownOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /admin/lockdown`."""

    active: bool
    cut: bool = False
    """End streams that cross gateways, too."""
    reason: str = ""


_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class AdminSources:
    """Where the admin pages get what they show, and who takes an operator's orders. What is shown is JSON-able."""

    metrics: Callable[[], bytes]
    metrics_content_type: str
    state: Callable[[], dict[str, object]]
    readiness: Readiness
    explain: Callable[[str], Awaitable[object | None]]
    """By the id of a request or a decision; None if it is not known."""
    lockdown: Callable[[LockdownOrder], Awaitable[object]]
    notes: Notes


def make_admin_app(
    sources: AdminSources, token: str | None = None, hosts: Collection[str] | None = None
) -> web.Application:
    """With a token, whoever does not show it gets nothing but health. With `hosts`, nobody gets anything who asks for
    another host than these or this machine."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=sources.metrics(), headers={"content-type": sources.metrics_content_type})

    async def state(_: web.Request) -> web.Response:
        return _json(sources.state())

    async def explain(request: web.Request) -> web.Response:
        explanation = await sources.explain(request.match_info["id"])
        if explanation is None:
            return _fault(404, "no request or decision is known here by that id, or no longer")
        return _json(explanation)

    async def lockdown(request: web.Request) -> web.Response:
        """A page in an operator's browser cannot send this content type to us unasked."""
        if request.content_type != "application/json":
            return _fault(415, "send application/json")
        try:
            order = msgspec.json.decode(await request.read(), type=LockdownOrder)
        except msgspec.DecodeError as error:
            return _fault(400, str(error))
        return _json(await sources.lockdown(order))

    middlewares: list[Middleware] = [] if hosts is None else [_answers_as(hosts)]
    if token is not None:
        middlewares.append(_asks_for(token))
    app = web.Application(middlewares=middlewares, client_max_size=BODY_BYTES_MAX)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/admin/state", state)
    app.router.add_get("/admin/explain/{id}", explain)
    app.router.add_post("/admin/lockdown", lockdown)
    add_health_routes(app, sources.readiness, sources.notes)
    return app


def _json(document: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), headers={"content-type": "application/json"})


def _fault(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)


def _answers_as(hosts: Collection[str]) -> Middleware:
    """A page in a browser on this machine may come from anywhere, and its name may come to mean this machine (DNS
    rebinding): then the browser lets it read our answers. The name is in Host, which no page can choose. Whoever sends
    none is no browser."""
    names = {host.lower() for host in hosts}

    @web.middleware
    async def answer(request: web.Request, handler: _Handler) -> web.StreamResponse:
        shown = request.headers.getall("host", [])
        if all(host_in(each) in names or is_this_machine(host_in(each)) for each in shown):
            return await handler(request)
        return _fault(421, "this is no name of the admin address: ask for localhost, or add it to listen.admin_hosts")

    return answer


def host_in(header: str) -> str:
    """Of `Host`, without its port and brackets."""
    host, colon, port = header.strip().rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()):
        host = header.strip()
    is_bracketed = host.startswith("[") and host.endswith("]")
    return (host[1:-1] if is_bracketed else host).lower()


def is_this_machine(host: str) -> bool:
    return Address(host, 0).is_loopback


def _asks_for(token: str) -> Middleware:
    expected = token.encode()

    @web.middleware
    async def ask(request: web.Request, handler: _Handler) -> web.StreamResponse:
        shown = credential_of(request.headers).encode("utf-8", "surrogateescape")
        if hmac.compare_digest(shown, expected) or request.path in HEALTH_PATHS:
            return await handler(request)
        refusal = _fault(401, "show the operators' token as a bearer token")
        refusal.headers["www-authenticate"] = "Bearer"
        return refusal

    return ask
