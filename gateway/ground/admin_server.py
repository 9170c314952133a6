"""What every admin address has: who may ask, for which name, and how its answers look. What it shows is each program's
own.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Collection, Mapping

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from gateway.ground.page.files import PAGE_PATHS
from gateway.ground.values import Address

HEALTH_PATHS = frozenset({"/health", "/ready"})
"""Open to everybody: balancers have no keys."""
OPEN_PATHS = HEALTH_PATHS | PAGE_PATHS
"""A browser cannot show a token for the page itself; the page can, and asks for it."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def admin_middlewares(token: str | None, hosts: Collection[str] | None) -> list[Middleware]:
    """With a token, whoever does not show it gets nothing but health and the page's own files. With `hosts`, nobody
    gets anything who asks for another host than these or this machine."""
    middlewares: list[Middleware] = [] if hosts is None else [_answers_as(hosts)]
    return middlewares if token is None else [*middlewares, _asks_for(token)]


def as_json(document: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), status=status, headers={"content-type": "application/json"})


def fault(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)


def credential_of(headers: Mapping[str, str]) -> str:
    """What OpenAI's clients send as a bearer token and Anthropic's as `x-api-key`; empty where there is neither."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


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
        return fault(421, "this is no name of the admin address: ask for localhost, or add it to listen.admin_hosts")

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
        if hmac.compare_digest(shown, expected) or request.path in OPEN_PATHS:
            return await handler(request)
        refusal = fault(401, "show the operators' token as a bearer token")
        refusal.headers["www-authenticate"] = "Bearer"
        return refusal

    return ask
