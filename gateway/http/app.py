"""The OpenAI-compatible API: parses just enough, hands each request to an owner, and answers what it can by itself.

It knows no engine and no peer, and places nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from gateway.core.effects import EndRequest
from gateway.core.events import RequestArrived
from gateway.core.vocabulary import ModelName, RequestId
from gateway.http import errors
from gateway.http.errors import ClientFault, ErrorKind
from gateway.http.health import Readiness, add_health_routes
from gateway.http.parse import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    Caller,
    choose_request_id,
    engine_headers,
    fresh_request_id,
    read_caller,
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

    def __init__(self, context: OwnerContext, settings: HttpSettings, models: Models, readiness: Readiness) -> None:
        self._context = context
        self._settings = settings
        self._models = models
        self._readiness = readiness
        self._room = Room(settings.requests_max, settings.bodies_bytes_max)

    def make_app(self) -> web.Application:
        """Run it with `make_runner`: without handler cancellation a client that leaves would go unnoticed."""
        app = web.Application(middlewares=[self._answer_faults], client_max_size=self._settings.body_bytes_max)
        app.router.add_post(CHAT_PATH, self._generate)
        app.router.add_post(COMPLETIONS_PATH, self._generate)
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_get("/v1/models/{model:.+}", self._show_model)
        add_health_routes(app, self._readiness)
        return app

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        request_id = self._new_request_id(request)
        sink = HttpSink(request, request_id, self._settings)
        try:
            await self._answer(request, request_id, sink)
        except ClientFault as fault:
            return error_response(fault.kind, request_id, self._settings, detail=fault.detail, param=fault.param)
        except ConnectionResetError:
            pass  # the client left: whatever is returned here reaches nobody
        return sink.response or error_response(errors.INTERNAL, request_id, self._settings)

    async def _answer(self, request: web.Request, request_id: RequestId, sink: HttpSink) -> None:
        caller = read_caller(request.headers, request_id, self._settings)
        length = request.content_length
        with self._room.hold(self._settings.body_bytes_max if length is None else length) as held:
            body = await self._read_body(request)
            held.resize(len(body))
            owner = self._owner_of(request, caller, body, sink)
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

    async def _list_models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [_model_entry(name) for name in self._models()]})

    async def _show_model(self, request: web.Request) -> web.Response:
        name = ModelName(request.match_info["model"])
        if name not in self._models():
            raise web.HTTPNotFound
        return web.json_response(_model_entry(name))

    def _new_request_id(self, request: web.Request) -> RequestId:
        """An id that is already running here is not used a second time."""
        wanted = choose_request_id(request.headers)
        return fresh_request_id() if self._context.driver.has_mailbox(wanted) else wanted

    @web.middleware
    async def _answer_faults(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """What aiohttp refuses by itself looks like any other error."""
        try:
            return await handler(request)
        except web.HTTPException as error:
            kind = _KINDS_BY_STATUS.get(error.status, errors.INVALID_REQUEST)
            return error_response(kind, choose_request_id(request.headers), self._settings)


def make_runner(app: web.Application, settings: HttpSettings) -> web.AppRunner:
    """The only right way to run these apps."""
    return web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        keepalive_timeout=settings.idle_connection_s,
        max_line_size=settings.header_line_bytes_max,
        max_field_size=settings.header_line_bytes_max,
        max_headers=settings.headers_max,
        shutdown_timeout=settings.shutdown_s,
    )


def _model_entry(name: ModelName) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "nightside"}
