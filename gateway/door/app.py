"""OpenAI-compatible HTTP API: parses requests as far as needed, hands each to an owner, and answers directly what it
can.

It knows no engine and no peer, and makes no placement.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from importlib.resources import files

from aiohttp import web

from gateway.core.kernel.effects import EndRequest
from gateway.core.kernel.events import RequestArrived
from gateway.core.vocabulary import ModelName, Outcome, PlaceRule, RequestId, TenantName
from gateway.door import errors
from gateway.door.connections import SHORTCUTS, GuardedRunner, Handler, OnFault, tell_loop
from gateway.door.cors import Cors
from gateway.door.entrance import CALLER, ROOT_PATH, Entrance, Rooms
from gateway.door.errors import ClientFault, ErrorKind
from gateway.door.health import Readiness, add_health_routes
from gateway.door.lost import where_it_went_wrong
from gateway.door.models import model_entry, models_page
from gateway.door.parse import Caller, choose_request_id, control_profile, engine_headers, read_request, unread_profile
from gateway.door.pulse import Pulse
from gateway.door.room import Room, holders_of
from gateway.door.settings import HttpSettings
from gateway.door.shapes import shape_of
from gateway.door.sink import MODEL_HEADER, SERVER_NAME, HttpSink, error_response, identity_headers
from gateway.door.uploads import Uploads, check_announced
from gateway.records.refusals import OnRefused, Refusal
from gateway.records.usage_book import UsageBook
from gateway.request.callers import NO_BUDGET, ClientKey, KeyCheck, TenantBudget
from gateway.request.content import ContentReader
from gateway.request.engine_api import POSTED_PATHS, RESPONSES_PATH, stored_response_of
from gateway.request.legs import Headers, OutboundRequest
from gateway.request.media import Media, MediaTokens
from gateway.request.model_names import ModelNames
from gateway.request.owner import OwnerContext, RequestOwner
from gateway.request.promises import NO_PROMISES, Promises
from gateway.request.transcript import Hold
from mesh.tokens.tokens import Tokens

Models = Callable[[TenantName, PlaceRule | None], Sequence[ModelName]]
"""Model names that a client of the tenant may use, over all targets that may serve it, with the restriction of its
key."""
MayEnter = Callable[[TenantName, PlaceRule | None], bool]
"""Tells whether this region may see plaintext of the tenant, with the restriction of the key."""

_SILENT = nullcontext()
_KINDS_BY_STATUS: dict[int, ErrorKind] = {
    404: errors.NOT_FOUND,
    405: errors.METHOD_NOT_ALLOWED,
    413: errors.BODY_TOO_LARGE,
}


class Api:
    """HTTP handlers for clients."""

    def __init__(
        self,
        context: OwnerContext,
        settings: HttpSettings,
        models: Models,
        readiness: Readiness,
        *,
        check_key: KeyCheck | None = None,
        tokens: Tokens[ClientKey] | None = None,
        has_audit: Callable[[], bool] = lambda: True,
        may_enter: MayEnter = lambda _tenant, _rule: True,
        on_refused: OnRefused = lambda _: None,
        names: ModelNames | None = None,
        book: UsageBook | None = None,
        tenant_budget: TenantBudget = lambda _: NO_BUDGET,
        contents: ContentReader | None = None,
        media_tokens: MediaTokens | None = None,
        promises: Promises = NO_PROMISES,
        rooms: Rooms = lambda _tenant, _now_ns: (),
    ) -> None:
        """Clients need no credential if both `check_key` and `tokens` are None; models have no aliases if `names` is
        None. While `has_audit` returns False, no request is accepted. `may_enter` refuses a request before its body is
        read; the core decides the same, so this is only earlier. `on_refused` is called for each request that is
        refused here; the core's refusals have records of their own. `book` records usage. `contents` classifies prompts
        of models whose pools are chosen by token counts, and `media_tokens` estimates media parts; `promises` gives
        requests' service classes, and `rooms` what is left of tenants' limits."""
        self._on_refused = on_refused
        self._has_audit = has_audit
        self._may_enter = may_enter
        self._context = context
        self._entrance = Entrance(
            settings,
            context.clock,
            context.driver.has_mailbox,
            check_key,
            tokens=tokens,
            book=book,
            tenant_budget=tenant_budget,
            rooms=rooms,
        )
        self._settings = settings
        self._cors = Cors(settings.cors)
        self._models = models
        self._names = names or ModelNames()
        self._contents = contents
        self._media_tokens = media_tokens or MediaTokens()
        self._promises = promises
        self._readiness = readiness
        self._room = Room(settings.requests_max, settings.bodies_bytes_max, settings.body_bytes_max)
        self._uploads = Uploads(settings)
        self._description = files("gateway.door").joinpath("openapi.yaml").read_bytes()

    def make_app(self) -> web.Application:
        """Make the app. Run it with `make_runner`: without handler cancellation, a client's leaving would go
        unnoticed."""
        app = web.Application(middlewares=[self._answer_faults])
        app.on_cleanup.append(self._close)
        self._entrance.install(app)
        app[SHORTCUTS] = dict.fromkeys(POSTED_PATHS, self._call_engine_directly)
        for path in POSTED_PATHS:
            app.router.add_post(path, self._call_engine, expect_handler=_say_nothing_yet)
        response = f"{RESPONSES_PATH}/{{id}}"
        app.router.add_get(response, self._call_engine, allow_head=False, expect_handler=_say_nothing_yet)
        app.router.add_delete(response, self._call_engine, expect_handler=_say_nothing_yet)
        app.router.add_post(f"{response}/cancel", self._call_engine, expect_handler=_say_nothing_yet)
        app.router.add_get("/openapi.yaml", self._show_description)
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_get("/v1/models/{model:.+}", self._show_model)
        app.router.add_get(ROOT_PATH, self._show_root)
        add_health_routes(app, self._readiness)
        return app

    def _call_engine_directly(self, request: web.Request) -> Awaitable[web.StreamResponse]:
        """Handle a call as the app's router and middlewares would, without routing. The functions in between are not
        coroutines: each coroutine adds a frame to go through whenever the task wakes."""
        return self._answer_faults(request, self._call_engine_through_door)

    def _call_engine_through_door(self, request: web.Request) -> Awaitable[web.StreamResponse]:
        return self._entrance.let_in(request, self._call_engine)

    async def _call_engine(self, request: web.Request) -> web.StreamResponse:
        caller = request[CALLER]
        shape = shape_of(request.path, request.headers)
        sink = HttpSink(request, caller.request_id, self._settings, shape, partial(self._more_headers, request))
        with suppress(ConnectionResetError):  # the client left: the returned response is not sent
            await self._answer(request, caller, sink)
        return sink.response or self._error_response(request, errors.INTERNAL)

    async def _answer(self, request: web.Request, caller: Caller, sink: HttpSink) -> None:
        if not self._has_audit():
            raise ClientFault(errors.AUDIT_UNAVAILABLE)
        if not self._may_enter(caller.tenant, caller.process):
            await self._turn_away(request, caller, sink)
            return
        check_announced(request, self._settings.body_bytes_max)  # first, since no room helps a body that is too large
        with self._room.hold(holders_of(caller, request.remote, self._settings)) as held:
            body = await self._uploads.read(request, held)
            owner, media = self._owner_of(request, caller, body, sink, held.keep)
            with self._entrance.charging(request, owner.profile, owner.summary), self._pulse(owner, sink):
                end = await owner.run()
            assert isinstance(end, EndRequest), "only forwards are refused"
            if media is not None and not owner.profile.follows:
                self._media_tokens.learn(owner.profile.model, media, owner.summary.prompt_tokens)

    def _pulse(self, owner: RequestOwner, sink: HttpSink) -> AbstractContextManager[None]:
        silence_s = self._settings.keep_alive_comments_s
        return _SILENT if silence_s is None or not owner.profile.stream else Pulse(silence_s, sink.say_it_waits)

    async def _turn_away(self, request: web.Request, caller: Caller, sink: HttpSink) -> None:
        """Have the core refuse the request, so that every record tells of it; only its headers have been read."""
        outbound = OutboundRequest(unread_profile(caller, self._settings), request.path, (), b"", request.method)
        await self._own(outbound, caller, sink).run()

    def _owner_of(
        self, request: web.Request, caller: Caller, body: bytes, sink: HttpSink, hold: Hold
    ) -> tuple[RequestOwner, Media | None]:
        """Owner of the request, and the media parts of its prompt."""
        headers = engine_headers(request.headers, caller.request_id)
        media: Media | None = None
        if request.path in POSTED_PATHS:
            parsed = read_request(
                request.path,
                body,
                caller,
                self._settings,
                self._names,
                contents=self._contents,
                promises=self._promises,
                media_tokens=self._media_tokens,
            )
            media = parsed.media
            outbound = OutboundRequest(
                parsed.profile,
                request.path,
                headers,
                parsed.body,
                asked_model=parsed.asked_model,
                stores_response=parsed.stores_response,
                cache_salt=parsed.cache_salt,
            )
            if parsed.asked_model:
                sink.say(MODEL_HEADER, parsed.profile.model)
        else:
            outbound = self._control_request(request, caller, headers)
        return self._own(outbound, caller, sink, hold), media

    def _own(self, outbound: OutboundRequest, caller: Caller, sink: HttpSink, hold: Hold | None = None) -> RequestOwner:
        patience_ns = self._settings.request_deadline_ns
        if caller.patience_ns is not None:
            patience_ns = min(patience_ns, caller.patience_ns)
        deadline_ns = self._context.clock.now_ns() + patience_ns
        return RequestOwner(self._context, RequestArrived(outbound.profile, deadline_ns), outbound, sink, hold=hold)

    def _control_request(self, request: web.Request, caller: Caller, headers: Headers) -> OutboundRequest:
        """Request about a stored response. Its path says everything; a body is ignored."""
        path = request.rel_url.raw_path_qs if request.method == "GET" else request.rel_url.raw_path
        response_id = stored_response_of(request.method, path)
        if response_id is None:
            raise ClientFault(errors.ENDINGS[Outcome.REJECTED_UNKNOWN_RESPONSE])
        is_stream = request.query.get("stream") == "true"
        profile = control_profile(response_id, caller, self._settings, stream=is_stream)
        return OutboundRequest(profile, path, headers, b"", request.method)

    async def _list_models(self, request: web.Request) -> web.Response:
        names = self._models_of(request[CALLER])
        return web.json_response(models_page(names, shape_of(request.path, request.headers)))

    async def _show_model(self, request: web.Request) -> web.Response:
        name = ModelName(request.match_info["model"])
        if name not in self._models_of(request[CALLER]):
            raise ClientFault(errors.MODEL_NOT_FOUND)
        return web.json_response(model_entry(name, shape_of(request.path, request.headers)))

    def _models_of(self, caller: Caller) -> list[ModelName]:
        process = None if caller.key is None else caller.key.process
        listed = self._names.listed(self._models(caller.tenant, process))
        return [
            name for name in listed if any(caller.may_use(meant, asked=name) for meant in self._names.stands_for(name))
        ]

    def _more_headers(self, request: web.Request) -> Mapping[str, str]:
        """Headers for what is left of the caller's limits, and for CORS."""
        limits = self._entrance.headers(request)
        return {**limits, **self._cors.headers(request)} if self._cors.is_on else limits

    def _options(self, request: web.Request) -> web.Response:
        """Answer OPTIONS: to a browser's preflight, which shows no key, and to any client that asks which methods a
        path has."""
        problem = request.match_info.http_exception
        if not isinstance(problem, web.HTTPMethodNotAllowed):
            return self._refuse(request, errors.NOT_FOUND, where_it_went_wrong(request.method, request.path))
        methods = sorted({*problem.allowed_methods, "OPTIONS"})
        return web.Response(status=204, headers={"allow": ", ".join(methods), **self._cors.preflight(request, methods)})

    @web.middleware
    async def _answer_faults(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Give refusals of the entrance and of aiohttp the shape of other errors, and every answer the headers that
        identify it."""
        if request.method == "OPTIONS":
            return self._options(request)
        try:
            response = await handler(request)
        except ClientFault as fault:
            return self._refuse(request, fault.kind, fault.detail, fault.param)
        except web.HTTPException as error:
            lost = where_it_went_wrong(request.method, request.path) if error.status == 404 else ""
            response = self._refuse(request, _KINDS_BY_STATUS.get(error.status, errors.INVALID_REQUEST), lost)
            if isinstance(error, web.HTTPMethodNotAllowed):
                response.headers["allow"] = error.headers["allow"]
            error.__traceback__ = None  # the request keeps the error, whose traceback refers to the request's frames
            return response
        if not response.prepared:
            shape = shape_of(request.path, request.headers)
            names = identity_headers(_request_id_of(request), self._settings, shape)
            for name, value in {**names, **self._more_headers(request)}.items():
                response.headers.setdefault(name, value)
        return response

    def _refuse(
        self, request: web.Request, kind: ErrorKind, detail: str = "", param: str | None = None
    ) -> web.Response:
        caller, request_id = request.get(CALLER), _request_id_of(request)
        tenant = None if caller is None else caller.tenant
        key_id = None if caller is None or caller.key is None else caller.key.key_id
        self._on_refused(Refusal(kind.code, kind.status, kind.message, request_id, tenant, key_id))
        return self._error_response(request, kind, detail, param, request_id=request_id)

    def _error_response(
        self,
        request: web.Request,
        kind: ErrorKind,
        detail: str = "",
        param: str | None = None,
        *,
        request_id: RequestId | None = None,
    ) -> web.Response:
        shape = shape_of(request.path, request.headers)
        request_id = request_id or _request_id_of(request)
        response = error_response(kind, request_id, self._settings, detail=detail, param=param, shape=shape)
        response.headers.update(self._more_headers(request))
        if "expect" in request.headers:
            response.force_close()  # the body may or may not follow, so the next bytes on the connection are ambiguous
        return response

    async def _close(self, _: web.Application) -> None:
        self._uploads.close()

    async def _show_root(self, _: web.Request) -> web.Response:
        """Identify the service: some clients and, by default, balancers ask for this path first."""
        return web.json_response({"name": SERVER_NAME, "gateway": self._settings.gateway_id, "api": "/openapi.yaml"})

    async def _show_description(self, _: web.Request) -> web.Response:
        return web.Response(body=self._description, content_type="application/yaml", charset="utf-8")


def make_runner(
    app: web.Application,
    settings: HttpSettings,
    on_fault: OnFault = tell_loop,
    on_refused: OnRefused = lambda _: None,
) -> GuardedRunner:
    """Runner for these apps; any other would lack their guards. `on_refused` is called for what is refused before there
    is a request."""
    app.on_response_prepare.append(_name_server)
    return GuardedRunner(
        app, settings, on_fault, on_refused, handler_cancellation=True, shutdown_timeout=settings.shutdown_s
    )


async def _name_server(_: web.Request, response: web.StreamResponse) -> None:
    """Hide the versions of interpreter and libraries."""
    response.headers["server"] = SERVER_NAME


async def _say_nothing_yet(_: web.Request) -> None:
    """Replace aiohttp's `100 Continue`, which would be sent before the caller and the size are checked."""


def _request_id_of(request: web.Request) -> RequestId:
    caller = request.get(CALLER)
    return choose_request_id(request.headers) if caller is None else caller.request_id
