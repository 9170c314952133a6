"""The OpenAI-compatible API: parses just enough, hands each request to an owner, and answers what it can by itself.

It knows no engine and no peer, and places nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from gateway.callers import KeyCheck
from gateway.core.effects import EndRequest
from gateway.core.events import RequestArrived
from gateway.core.vocabulary import ModelName
from gateway.http import errors
from gateway.http.connections import GuardedRunner, OnFault, tell_loop
from gateway.http.entrance import CALLER, Entrance
from gateway.http.errors import ClientFault, ErrorKind
from gateway.http.health import Readiness, add_health_routes
from gateway.http.parse import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    Caller,
    choose_request_id,
    engine_headers,
    read_profile,
)
from gateway.http.room import Room
from gateway.http.settings import HttpSettings
from gateway.http.sink import HttpSink, error_response
from gateway.legs import OutboundRequest
from gateway.owner import OwnerContext, RequestOwner

Models = Callable[[], Sequence[ModelName]]
"""The names that a client may put into `model`, over everything this gateway can reach."""
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_KINDS_BY_STATUS: dict[int, ErrorKind] = {
    404: errors.NOT_FOUND,
    405: errors.METHOD_NOT_ALLOWED,
    413: errors.BODY_TOO_LARGE,
}


class Api:
    """The handlers for clients."""

    def __init__(
        self,
        context: OwnerContext,
        settings: HttpSettings,
        models: Models,
        readiness: Readiness,
        check_key: KeyCheck | None = None,
    ) -> None:
        """Without `check_key` clients need no key."""
        self._context = context
        self._entrance = Entrance(settings, context.clock, context.driver.has_mailbox, check_key)
        self._settings = settings
        self._models = models
        self._readiness = readiness
        self._room = Room(settings.requests_max, settings.bodies_bytes_max)

    def make_app(self) -> web.Application:
        """Run it with `make_runner`: without handler cancellation a client that leaves would go unnoticed."""
        app = web.Application(middlewares=[self._answer_faults], client_max_size=self._settings.body_bytes_max)
        self._entrance.install(app)
        app.router.add_post(CHAT_PATH, self._generate)
        app.router.add_post(COMPLETIONS_PATH, self._generate)
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_get("/v1/models/{model:.+}", self._show_model)
        add_health_routes(app, self._readiness)
        return app

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        caller = request[CALLER]
        request_id = caller.request_id
        sink = HttpSink(request, request_id, self._settings)
        try:
            await self._answer(request, caller, sink)
        except ClientFault as fault:
            return error_response(fault.kind, request_id, self._settings, detail=fault.detail, param=fault.param)
        except ConnectionResetError:
            pass  # the client left: whatever is returned here reaches nobody
        return sink.response or error_response(errors.INTERNAL, request_id, self._settings)

    async def _answer(self, request: web.Request, caller: Caller, sink: HttpSink) -> None:
        length = request.content_length
        with self._room.hold(self._settings.body_bytes_max if length is None else length) as held:
            body = await self._read_body(request)
            held.resize(len(body))
            owner = self._owner_of(request, caller, body, sink)
            with self._entrance.charging(request, owner.profile, owner.summary):
                end = await owner.run()
            assert isinstance(end, EndRequest), "only forwards are refused"

    def _owner_of(self, request: web.Request, caller: Caller, body: bytes, sink: HttpSink) -> RequestOwner:
        profile = read_profile(request.path, body, caller, self._settings)
        deadline_ns = self._context.clock.now_ns() + self._settings.request_deadline_ns
        outbound = OutboundRequest(profile, request.path, engine_headers(request.headers, caller.request_id), body)
        return RequestOwner(self._context, RequestArrived(profile, deadline_ns), outbound, sink)

    async def _read_body(self, request: web.Request) -> bytes:
        try:
            async with asyncio.timeout(self._settings.stall_s):
                return await request.read()
        except TimeoutError as error:
            raise ClientFault(errors.BODY_INCOMPLETE) from error
        except web.HTTPRequestEntityTooLarge as error:
            raise ClientFault(errors.BODY_TOO_LARGE) from error
        except web.RequestPayloadError as error:
            raise ClientFault(errors.INVALID_REQUEST) from error

    async def _list_models(self, request: web.Request) -> web.Response:
        names = [name for name in self._models() if request[CALLER].may_use(name)]
        return web.json_response({"object": "list", "data": [_model_entry(name) for name in names]})

    async def _show_model(self, request: web.Request) -> web.Response:
        name = ModelName(request.match_info["model"])
        if name not in self._models() or not request[CALLER].may_use(name):
            raise web.HTTPNotFound
        return web.json_response(_model_entry(name))

    @web.middleware
    async def _answer_faults(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """What the entrance or aiohttp refuses looks like any other error."""
        try:
            return await handler(request)
        except ClientFault as fault:
            request_id = choose_request_id(request.headers)
            return error_response(fault.kind, request_id, self._settings, detail=fault.detail, param=fault.param)
        except web.HTTPException as error:
            kind = _KINDS_BY_STATUS.get(error.status, errors.INVALID_REQUEST)
            return error_response(kind, choose_request_id(request.headers), self._settings)


def make_runner(app: web.Application, settings: HttpSettings, on_fault: OnFault = tell_loop) -> web.AppRunner:
    """The only right way to run these apps."""
    return GuardedRunner(app, settings, on_fault, handler_cancellation=True, shutdown_timeout=settings.shutdown_s)


def _model_entry(name: ModelName) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "nightside"}
