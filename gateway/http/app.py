"""The OpenAI-compatible API: parses just enough, hands each request to an owner, and answers what it can by itself.

It knows no engine and no peer, and places nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.resources import files

from aiohttp import web

from gateway.core.effects import EndRequest
from gateway.core.events import RequestArrived
from gateway.core.vocabulary import ModelName, Outcome, RequestId
from gateway.http import errors
from gateway.http.connections import SHORTCUTS, GuardedRunner, Handler, OnFault, tell_loop
from gateway.http.entrance import CALLER, Entrance
from gateway.http.errors import ClientFault, ErrorKind
from gateway.http.health import Readiness, add_health_routes
from gateway.http.models import model_entry, models_page
from gateway.http.parse import Caller, choose_request_id, control_profile, engine_headers, read_request
from gateway.http.room import Room
from gateway.http.settings import HttpSettings
from gateway.http.shapes import shape_of
from gateway.http.sink import HttpSink, error_response, identity_headers
from gateway.request.callers import KeyCheck
from gateway.request.engine_api import POSTED_PATHS, RESPONSES_PATH, stored_response_of
from gateway.request.legs import Headers, OutboundRequest
from gateway.request.owner import OwnerContext, RequestOwner

Models = Callable[[], Sequence[ModelName]]
"""The names that a client may put into `model`, over everything this gateway can reach."""

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
        *,
        check_key: KeyCheck | None = None,
        has_audit: Callable[[], bool] = lambda: True,
    ) -> None:
        """Without `check_key` clients need no key. While `has_audit` says no, no request is taken."""
        self._has_audit = has_audit
        self._context = context
        self._entrance = Entrance(settings, context.clock, context.driver.has_mailbox, check_key)
        self._settings = settings
        self._models = models
        self._readiness = readiness
        self._room = Room(settings.requests_max, settings.bodies_bytes_max)
        self._description = files("gateway.http").joinpath("openapi.yaml").read_bytes()

    def make_app(self) -> web.Application:
        """Run it with `make_runner`: without handler cancellation a client that leaves would go unnoticed."""
        app = web.Application(middlewares=[self._answer_faults], client_max_size=self._settings.body_bytes_max)
        self._entrance.install(app)
        app[SHORTCUTS] = dict.fromkeys(POSTED_PATHS, self._call_engine_directly)
        for path in POSTED_PATHS:
            app.router.add_post(path, self._call_engine)
        app.router.add_get(f"{RESPONSES_PATH}/{{id}}", self._call_engine, allow_head=False)
        app.router.add_delete(f"{RESPONSES_PATH}/{{id}}", self._call_engine)
        app.router.add_post(f"{RESPONSES_PATH}/{{id}}/cancel", self._call_engine)
        app.router.add_get("/openapi.yaml", self._show_description)
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_get("/v1/models/{model:.+}", self._show_model)
        add_health_routes(app, self._readiness)
        return app

    def _call_engine_directly(self, request: web.Request) -> Awaitable[web.StreamResponse]:
        """The same as by the app's router and middlewares, without looking for the way. What only passes a call on is
        no coroutine: each is one more to go through whenever the task is woken."""
        return self._answer_faults(request, self._call_engine_through_door)

    def _call_engine_through_door(self, request: web.Request) -> Awaitable[web.StreamResponse]:
        return self._entrance.let_in(request, self._call_engine)

    async def _call_engine(self, request: web.Request) -> web.StreamResponse:
        caller = request[CALLER]
        shape = shape_of(request.path, request.headers)
        sink = HttpSink(request, caller.request_id, self._settings, shape, partial(self._entrance.headers, request))
        with suppress(ConnectionResetError):  # the client left: whatever is returned here reaches nobody
            await self._answer(request, caller, sink)
        return sink.response or self._error_response(request, errors.INTERNAL)

    async def _answer(self, request: web.Request, caller: Caller, sink: HttpSink) -> None:
        if not self._has_audit():
            raise ClientFault(errors.AUDIT_UNAVAILABLE)
        length = request.content_length if request.body_exists else 0
        if length is not None and length > self._settings.body_bytes_max:
            raise ClientFault(errors.BODY_TOO_LARGE)  # waiting for room would not help
        with self._room.hold(self._settings.body_bytes_max if length is None else length) as held:
            body = await self._read_body(request)
            held.resize(len(body))
            owner = self._owner_of(request, caller, body, sink)
            with self._entrance.charging(request, owner.profile, owner.summary):
                end = await owner.run()
            assert isinstance(end, EndRequest), "only forwards are refused"

    def _owner_of(self, request: web.Request, caller: Caller, body: bytes, sink: HttpSink) -> RequestOwner:
        headers = engine_headers(request.headers, caller.request_id)
        if request.path in POSTED_PATHS:
            parsed = read_request(request.path, body, caller, self._settings)
            outbound = OutboundRequest(
                parsed.profile,
                request.path,
                headers,
                body,
                stores_response=parsed.stores_response,
                cache_salt=parsed.cache_salt,
            )
        else:
            outbound = self._control_request(request, caller, headers)
        deadline_ns = self._context.clock.now_ns() + self._settings.request_deadline_ns
        return RequestOwner(self._context, RequestArrived(outbound.profile, deadline_ns), outbound, sink)

    def _control_request(self, request: web.Request, caller: Caller, headers: Headers) -> OutboundRequest:
        """About a stored response: what it is has been said in the path, so that a body says nothing more."""
        path = request.rel_url.raw_path_qs if request.method == "GET" else request.rel_url.raw_path
        response_id = stored_response_of(request.method, path)
        if response_id is None:
            raise ClientFault(errors.ENDINGS[Outcome.REJECTED_UNKNOWN_RESPONSE])
        is_stream = request.query.get("stream") == "true"
        profile = control_profile(response_id, caller, self._settings, stream=is_stream)
        return OutboundRequest(profile, path, headers, b"", request.method)

    async def _read_body(self, request: web.Request) -> bytes:
        length = request.content_length
        if length is not None and length <= self._settings.body_bytes_max and request.content.is_eof():
            return request.content.read_nowait()  # it came in with its headers
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
        return web.json_response(models_page(names, shape_of(request.path, request.headers)))

    async def _show_model(self, request: web.Request) -> web.Response:
        name = ModelName(request.match_info["model"])
        if name not in self._models() or not request[CALLER].may_use(name):
            raise ClientFault(errors.MODEL_NOT_FOUND)
        return web.json_response(model_entry(name, shape_of(request.path, request.headers)))

    @web.middleware
    async def _answer_faults(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """What the entrance or aiohttp refuses looks like any other error, and every answer has its names."""
        try:
            response = await handler(request)
        except ClientFault as fault:
            return self._error_response(request, fault.kind, fault.detail, fault.param)
        except web.HTTPException as error:
            response = self._error_response(request, _KINDS_BY_STATUS.get(error.status, errors.INVALID_REQUEST))
            if isinstance(error, web.HTTPMethodNotAllowed):
                response.headers["allow"] = error.headers["allow"]
            return response
        if not response.prepared:
            shape = shape_of(request.path, request.headers)
            names = identity_headers(_request_id_of(request), self._settings, shape)
            for name, value in {**names, **self._entrance.headers(request)}.items():
                response.headers.setdefault(name, value)
        return response

    def _error_response(
        self, request: web.Request, kind: ErrorKind, detail: str = "", param: str | None = None
    ) -> web.Response:
        shape = shape_of(request.path, request.headers)
        request_id = _request_id_of(request)
        response = error_response(kind, request_id, self._settings, detail=detail, param=param, shape=shape)
        response.headers.update(self._entrance.headers(request))
        return response

    async def _show_description(self, _: web.Request) -> web.Response:
        return web.Response(body=self._description, content_type="application/yaml", charset="utf-8")


def make_runner(app: web.Application, settings: HttpSettings, on_fault: OnFault = tell_loop) -> web.AppRunner:
    """The only right way to run these apps."""
    return GuardedRunner(app, settings, on_fault, handler_cancellation=True, shutdown_timeout=settings.shutdown_s)


def _request_id_of(request: web.Request) -> RequestId:
    caller = request.get(CALLER)
    return choose_request_id(request.headers) if caller is None else caller.request_id
