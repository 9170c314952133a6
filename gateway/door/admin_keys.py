"""Admin API for clients' keys and their usage. The keys file stays the only source of keys. No secret is shown but one
that was just made on request.

The API changes the file through the objects handed in; it reads or writes no file itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Protocol

import msgspec
from aiohttp import web

from gateway.records.usage_book import UsageAmounts, UsageKey
from mesh.admin_server import OPERATOR, as_json, fault, needs
from mesh.operators import Operator
from mesh.operators_config import Role

_BY = ("", "key", "tenant")


class KeysRefused(Exception):
    """A change that the keys file cannot take, with the reason in words."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class KeysService(Protocol):
    """Reads and changes the keys file. Every method but `list` raises KeysRefused."""

    def list(self) -> Sequence[Mapping[str, object]]: ...
    async def add(self, options: Mapping[str, Any], by: Operator) -> Mapping[str, object]: ...
    async def rotate(self, key_id: str, keep: str, by: Operator) -> Mapping[str, object]: ...
    async def change(self, key_id: str, options: Mapping[str, Any], by: Operator) -> Mapping[str, object]: ...
    async def remove(self, key_id: str, by: Operator) -> None: ...


class UsageReports(Protocol):
    """Reports recorded usage."""

    @property
    def today(self) -> str: ...

    async def asked(self, first: str, last: str, by: str) -> tuple[Sequence[tuple[UsageKey, UsageAmounts]], bool]:
        """Rows of these days, and whether there are more rows than these."""
        ...


class _Rotation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keep: str = "7d"
    """Duration for which the present secret remains valid as well."""


def add_key_routes(app: web.Application, service: KeysService | None, *, are_asked: bool) -> None:
    """Add the routes for keys. They answer 403 where operators need no token: any caller who reached the address could
    make a key."""
    closed = "keys are only shown and changed here where operators show a token: set admin_token_file or operators"
    no_file = "there is no keys file: set keys in the region file"

    def the_desk() -> KeysService:
        if not are_asked:
            raise KeysRefused(closed, 403)
        if service is None:
            raise KeysRefused(no_file, 404)
        return service

    @needs(Role.LOOK)
    async def show(_: web.Request) -> web.Response:
        return as_json({"keys": the_desk().list()})

    @needs(Role.CHANGE)
    async def add(request: web.Request) -> web.Response:
        return as_json(await the_desk().add(await _object(request), request[OPERATOR]), 201)

    @needs(Role.CHANGE)
    async def rotate(request: web.Request) -> web.Response:
        wanted = await _read(request, _Rotation)
        return as_json(await the_desk().rotate(request.match_info["id"], wanted.keep, request[OPERATOR]))

    @needs(Role.CHANGE)
    async def change(request: web.Request) -> web.Response:
        return as_json(await the_desk().change(request.match_info["id"], await _object(request), request[OPERATOR]))

    @needs(Role.CHANGE)
    async def remove(request: web.Request) -> web.Response:
        await the_desk().remove(request.match_info["id"], request[OPERATOR])
        return web.Response(status=204)

    app.middlewares.append(_answer_refusals)
    app.router.add_get("/admin/keys", show)
    app.router.add_post("/admin/keys", add)
    app.router.add_patch("/admin/keys/{id}", change)
    app.router.add_delete("/admin/keys/{id}", remove)
    app.router.add_post("/admin/keys/{id}/rotate", rotate)


def add_usage_route(app: web.Application, service: UsageReports) -> None:
    @needs(Role.LOOK)
    async def usage(request: web.Request) -> web.Response:
        by = request.query.get("by", "")
        first, last = (request.query.get(name, service.today) for name in ("from", "to"))
        if by not in _BY:
            return fault(400, "by is key or tenant, or is left out")
        for day in (first, last):
            if not _is_day(day):
                return fault(400, "from and to are days such as 2026-11-22")
        rows, is_cut = await service.asked(first, last, by)
        return as_json({"from": first, "to": last, "rows": [_row(*each) for each in rows], "truncated": is_cut})

    app.router.add_get("/admin/usage", usage)


@web.middleware
async def _answer_refusals(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        response: web.StreamResponse = await handler(request)
    except KeysRefused as refused:
        return fault(refused.status, str(refused))
    return response


def _row(line: UsageKey, used: UsageAmounts) -> dict[str, object]:
    told = {"day": line.day, "key": line.key, "tenant": line.tenant}
    counted = {name: getattr(used, name) for name in ("requests", "prompt_tokens", "cached_tokens", "output_tokens")}
    return {**{name: text for name, text in told.items() if text}, **counted}


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


async def _object(request: web.Request) -> dict[str, Any]:
    found = await _read(request, Any)
    if not isinstance(found, dict):
        raise KeysRefused("send a JSON object")
    return found


async def _read(request: web.Request, kind: Any) -> Any:
    """Decode a JSON body. A page in an operator's browser cannot send this content type without permission (CSRF).
    Raises KeysRefused."""
    if request.content_type != "application/json":
        raise KeysRefused("send application/json", 415)
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise KeysRefused(str(error)) from error
