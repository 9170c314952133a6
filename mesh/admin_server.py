"""Common parts of every admin address: authentication, roles, host names and the form of answers. What an address shows
belongs to each program, and so does the role that each handler needs: `@needs(Role.LOOK)`, or `@open_to_all`. A handler
that declares neither needs the highest role.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from mesh.operators import NotAnOperator, Operator, Operators
from mesh.operators_config import Role
from mesh.values import Address

HEALTH_PATHS = frozenset({"/health", "/ready"})
"""Paths that are open to all callers: load balancers have no keys."""

OPERATOR = web.RequestKey("operator", Operator)
"""Key under which handlers find the operator of a request."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_AnyHandler = TypeVar("_AnyHandler", bound=Callable[..., Any])
_NEEDED = "nightside_role"


def needs(role: Role) -> Callable[[_AnyHandler], _AnyHandler]:
    """Declare the role that a handler needs."""

    def declare(handler: _AnyHandler) -> _AnyHandler:
        handler.__dict__[_NEEDED] = role
        return handler

    return declare


def open_to_all(handler: _AnyHandler) -> _AnyHandler:
    """Declare that a handler shows nothing of this program, such as a page that has yet to ask for its data."""
    handler.__dict__[_NEEDED] = None
    return handler


def undeclared_routes(app: web.Application) -> Iterator[str]:
    """Yield the routes whose handlers declare nothing, as "METHOD path"."""
    for route in app.router.routes():
        path = "" if route.resource is None else route.resource.canonical
        if path not in HEALTH_PATHS and _NEEDED not in _declared_by(route.handler):
            yield f"{route.method} {path}"


def add_whoami(app: web.Application) -> None:
    """Add /admin/whoami, for clients that want to know which actions to offer."""

    @needs(Role.LOOK)
    async def whoami(request: web.Request) -> web.Response:
        operator = request[OPERATOR]
        return as_json({"operator": operator.name, "role": operator.role})

    app.router.add_get("/admin/whoami", whoami)


def admin_middlewares(operators: Operators, hosts: Collection[str] | None) -> list[Middleware]:
    """Middlewares that give callers who are no operators only health and what is open to all. With `hosts`, each
    request for another host than these or this machine is refused."""
    middlewares: list[Middleware] = [_as_data] if hosts is None else [_as_data, _answers_as(hosts)]
    return [*middlewares, _asks_for(operators)]


_DATA_HEADERS = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}


@web.middleware
async def _as_data(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Add headers that keep a browser from showing an answer as a page, whatever text it holds. The page's own files
    set theirs themselves."""
    try:
        answer = await handler(request)
    except web.HTTPException as error:
        _add_headers(error)
        raise
    if not answer.prepared:
        _add_headers(answer)
    return answer


def _add_headers(answer: web.StreamResponse | web.HTTPException) -> None:
    for name, value in _DATA_HEADERS.items():
        answer.headers.setdefault(name, value)


def refuse_less_than(needed: Role, request: web.Request) -> web.Response | None:
    """Refuse an operator whose role is too low; for handlers of which some calls need more than is declared."""
    operator = request[OPERATOR]
    if operator.may(needed):
        return None
    return fault(403, f"this needs the role `{needed}`, and {operator.name} has `{operator.role}`")


def as_json(document: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), status=status, headers={"content-type": "application/json"})


def fault(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)


def credential_of(headers: Mapping[str, str]) -> str:
    """Credential of a request: the bearer token, as OpenAI's clients send it, or `x-api-key`, as Anthropic's do; empty
    where there is neither."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _answers_as(hosts: Collection[str]) -> Middleware:
    """Middleware that refuses requests for a host that is neither in `hosts` nor this machine (421), and requests from
    pages of another origin (403).

    A page of any origin may run in a browser on this machine, and its name may be made to resolve to this machine (DNS
    rebinding): then the browser would let it read the answers. The name stands in Host, which a page cannot choose; a
    client that sends no Host is not a browser. A page of another origin could still send commands without seeing the
    answers, but its browser names that origin in Origin.
    """
    names = {host.lower() for host in hosts}

    def is_own_page(origin: str, shown: Sequence[str]) -> bool:
        place = origin.strip().lower().partition("://")[2]
        return place in (each.strip().lower() for each in shown) or is_name_of_ours(host_in(place))

    def is_name_of_ours(host: str) -> bool:
        return host in names and not is_this_machine(host)

    @web.middleware
    async def answer(request: web.Request, handler: _Handler) -> web.StreamResponse:
        shown = request.headers.getall("host", [])
        if not all(host_in(each) in names or is_this_machine(host_in(each)) for each in shown):
            return fault(
                421, "this is no name of the admin address: ask for localhost, or add it to listen.admin_hosts"
            )
        if not all(is_own_page(each, shown) for each in request.headers.getall("origin", [])):
            return fault(403, "a page of another origin asks nothing of the admin address")
        return await handler(request)

    return answer


def host_in(header: str) -> str:
    """Host name in a `Host` header, without port and brackets."""
    host, colon, port = header.strip().rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()):
        host = header.strip()
    is_bracketed = host.startswith("[") and host.endswith("]")
    return (host[1:-1] if is_bracketed else host).lower()


def is_this_machine(host: str) -> bool:
    return Address(host, 0).is_loopback


def _asks_for(operators: Operators) -> Middleware:
    @web.middleware
    async def ask(request: web.Request, handler: _Handler) -> web.StreamResponse:
        declared = _declared_by(request.match_info.handler)
        if request.path in HEALTH_PATHS or declared.get(_NEEDED, Role.CHANGE) is None:
            return await handler(request)
        try:
            request[OPERATOR] = await operators.identify(credential_of(request.headers))
        except NotAnOperator as unknown:
            refusal = fault(401, str(unknown))
            refusal.headers["www-authenticate"] = "Bearer"
            return refusal
        is_known_path = request.match_info.http_exception is None
        needed = declared.get(_NEEDED, Role.CHANGE) if is_known_path else Role.LOOK
        return refuse_less_than(needed, request) or await handler(request)

    return ask


def _declared_by(handler: object) -> Mapping[str, Any]:
    return getattr(handler, "__dict__", {})
