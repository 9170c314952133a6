"""OpenAI-compatible HTTP API: parses requests as far as needed, hands each to a `ProxiedRequest`, and answers directly
what it can.

It knows no engine and no peer, and makes no placement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from importlib.resources import files

import msgspec

from gateway.config.content import ContentConfig
from gateway.core.kernel.events import RequestArrived
from gateway.core.vocabulary import ModelName, Outcome, PlaceRule, TenantName
from gateway.door import errors
from gateway.door.body_memory import BodyMemory, owners_of
from gateway.door.call import MODEL_HEADER, SERVER_NAME, CallContext, ClientCall, raw_answer
from gateway.door.client_access import ClientAccess, LimitAllowances
from gateway.door.cors import Cors
from gateway.door.errors import ClientFault, ErrorKind
from gateway.door.health import Readiness, live_page, ready_page
from gateway.door.models import model_entry, models_page
from gateway.door.parse import Caller, control_profile, engine_headers, fresh_request_id, read_request, unread_profile
from gateway.door.route_not_found import route_hint
from gateway.door.routes import Answer, FindAnswers, Route, Serve, get_route, path_of
from gateway.door.settings import HttpSettings
from gateway.door.shapes import shape_of
from gateway.door.uploads import TURN_BYTES, Uploads, check_announced
from gateway.http1.server import Exchange, HttpFault
from gateway.records.refusals import OnRefused, Refusal
from gateway.records.usage_book import UsageBook
from gateway.request.callers import NO_BUDGET, ClientKey, KeyCheck, TenantBudget
from gateway.request.content import ContentReader
from gateway.request.engine_api import POSTED_PATHS, RESPONSES_PATH, stored_response_of
from gateway.request.legs import Headers, OutboundRequest
from gateway.request.media import MediaTokens
from gateway.request.model_names import ModelNames
from gateway.request.promises import NO_PROMISES, Promises
from gateway.request.proxied import ProxiedRequest, RequestContext
from mesh.admin_server import HEALTH_PATHS
from mesh.clock import Clock
from mesh.tokens.tokens import Tokens

Models = Callable[[TenantName, PlaceRule | None], Sequence[ModelName]]
"""Model names that a client of the tenant may use, over all targets that may serve it, with the restriction of its
key."""
MayEnter = Callable[[TenantName, PlaceRule | None], bool]
"""Tells whether this region may see plaintext of the tenant, with the restriction of the key."""

ROOT_PATH = "/"
_OPEN_PATHS = HEALTH_PATHS | {ROOT_PATH}
_JSON = {"content-type": "application/json; charset=utf-8"}
_CALLS = {path.encode(): (path, shape_of(path, {})) for path in POSTED_PATHS}
"""Calls with a body, by the target of their request line as nearly all clients write it."""
_MODELS = "/v1/models"
_FAULTS: dict[HttpFault, ErrorKind] = {
    HttpFault.INVALID_REQUEST: errors.INVALID_REQUEST,
    HttpFault.INVALID_HEADER: errors.INVALID_HEADER,
    HttpFault.INVALID_TRANSFER_ENCODING: errors.INVALID_TRANSFER_ENCODING,
    HttpFault.VERSION_NOT_SUPPORTED: errors.VERSION_NOT_SUPPORTED,
    HttpFault.HEADERS_TOO_LARGE: errors.HEADERS_TOO_LARGE,
    HttpFault.HEADERS_INCOMPLETE: errors.HEADERS_INCOMPLETE,
    HttpFault.TOO_MANY_CONNECTIONS: errors.TOO_MANY_CONNECTIONS,
}


class ClientApi:
    """Handler of the clients' port."""

    def __init__(
        self,
        context: RequestContext,
        settings: HttpSettings,
        models: Models,
        readiness: Readiness,
        *,
        clock: Clock,
        turn_over: Callable[[], None],
        check_key: KeyCheck | None = None,
        tokens: Tokens[ClientKey] | None = None,
        has_audit: Callable[[], bool] = lambda: True,
        may_enter: MayEnter = lambda _tenant, _rule: True,
        on_refused: OnRefused = lambda _: None,
        on_fault: Callable[[BaseException], None] = lambda _: None,
        names: ModelNames | None = None,
        book: UsageBook | None = None,
        tenant_budget: TenantBudget = lambda _: NO_BUDGET,
        contents: ContentReader | None = None,
        media_tokens: MediaTokens | None = None,
        promises: Promises = NO_PROMISES,
        allowances: LimitAllowances = lambda _tenant, _now_ns: (),
    ) -> None:
        """Clients need no credential if both `check_key` and `tokens` are None; models have no aliases if `names` is
        None. While `has_audit` returns False, no request is accepted. `may_enter` refuses a request before its body is
        read; the core decides the same, so this is only earlier. `on_refused` is called for each request that is
        refused here, since the core's refusals have records of their own; `on_fault` for each internal error;
        `turn_over` hands the core what was posted. `book` records usage. `contents` classifies prompts of models whose
        pools are chosen by token counts, and `media_tokens` estimates media parts; `promises` gives requests' service
        classes, and `allowances` what is left of tenants' limits."""
        self._context = context
        self._settings = settings
        self._models = models
        self._readiness = readiness
        self._clock = clock
        self._turn_over = turn_over
        self._has_audit = has_audit
        self._may_enter = may_enter
        self._on_refused = on_refused
        self._on_fault = on_fault
        self._names = names or ModelNames()
        self._contents = contents
        self._media_tokens = media_tokens or MediaTokens(ContentConfig)
        self._promises = promises
        self._entrance = ClientAccess(
            settings,
            clock,
            context.port.is_open,
            check_key,
            tokens=tokens,
            book=book,
            tenant_budget=tenant_budget,
            allowances=allowances,
        )
        cors = Cors(settings.cors)
        self._cors = cors
        self._calls = CallContext(settings, clock, self._entrance, cors, self._media_tokens, on_refused)
        self._room = BodyMemory(settings.requests_max, settings.bodies_bytes_max, settings.body_bytes_max)
        self._uploads = Uploads(settings)
        self._tasks: set[asyncio.Task[None]] = set()
        self._description = files("gateway.door").joinpath("openapi.yaml").read_bytes()
        self._routes = self._make_routes()
        self._find_answers: list[FindAnswers] = []

    def close(self) -> None:
        """Cancel what is waited for, and end the thread for uploads."""
        for task in tuple(self._tasks):
            task.cancel()
        self._uploads.close()

    # Features

    def add_routes(self, find: FindAnswers) -> None:
        """Add the routes of a feature."""
        self._find_answers.append(find)

    def serve_for(self, exchange: Exchange, path: str, caller: Caller) -> None:
        """Serve a request of a client that was identified before, as if the client sent it."""
        call = ClientCall(self._calls, exchange, path, shape_of(path, {}))
        exchange.on_left = call.left
        self._guarded(call, self._let_in, caller, self._post)
        self._turn_over()

    def give_up(self, exchange: Exchange) -> None:
        """End a request of `serve_for` as if its client left."""
        exchange.left()
        self._turn_over()

    # Handler of the server

    def serve(self, exchange: Exchange) -> None:
        known = _CALLS.get(exchange.target) if exchange.method == "POST" else None
        if known is not None:
            call = ClientCall(self._calls, exchange, *known)
            exchange.on_left = call.left
            self._guarded(call, self._enter, self._post)
        else:
            path = path_of(exchange.target)
            call = ClientCall(self._calls, exchange, path, shape_of(path, exchange.headers))
            exchange.on_left = call.left
            self._guarded(call, self._route)

    def refuse(self, fault: HttpFault) -> bytes:
        kind = _FAULTS[fault]
        self._on_refused(Refusal(kind.code, kind.status, kind.message))
        return raw_answer(kind, self._settings)

    def _guarded(self, call: ClientCall, step: Callable[..., None], *arguments: object) -> None:
        """Take a step of a call; an error ends the call, and no other one."""
        try:
            step(call, *arguments)
        except ClientFault as fault:
            call.refuse(fault)
        except Exception as error:  # noqa: BLE001 - any other error is this gateway's own
            self._failed(call, error)

    def _failed(self, call: ClientCall, error: BaseException) -> None:
        self._on_fault(error)
        call.fail()

    def _aside(self, call: ClientCall, work: Coroutine[None, None, None]) -> None:
        """Run something that a call has to wait for. The client's leaving cancels it."""
        call.task = task = asyncio.get_running_loop().create_task(self._answer_aside(call, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_aside(self, call: ClientCall, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except ClientFault as fault:
            call.refuse(fault)
        except asyncio.CancelledError:
            pass  # the client has left; a task that kept the error would be held by its traceback's frames
        except Exception as error:  # noqa: BLE001 - see `_guarded`
            self._failed(call, error)
        finally:
            call.task = None
            self._turn_over()

    # Routes

    def _make_routes(self) -> dict[str, Route]:
        routes = dict.fromkeys(POSTED_PATHS, Route({"POST": self._post}))
        return {
            **routes,
            "/openapi.yaml": get_route(self._show_description),
            _MODELS: get_route(self._list_models),
            ROOT_PATH: get_route(self._show_root),
            "/health": get_route(self._show_live),
            "/ready": get_route(self._show_ready),
        }

    def _find(self, path: str) -> Route | None:
        found = self._routes.get(path)
        if found is not None:
            return found
        if path.startswith(f"{_MODELS}/") and len(path) > len(_MODELS) + 1:
            return get_route(self._show_model)
        if path.startswith(f"{RESPONSES_PATH}/"):
            rest = path.removeprefix(f"{RESPONSES_PATH}/")
            if rest.endswith("/cancel") and rest.count("/") == 1:
                return Route({"POST": self._control})
            if rest and "/" not in rest:
                return Route({"GET": self._control, "DELETE": self._control})
        for find in self._find_answers:
            if (answers := find(path)) is not None:
                return Route({method: partial(self._serve_aside, answer) for method, answer in answers.items()})
        return None

    def _serve_aside(self, answer: Answer, call: ClientCall) -> None:
        if self._takes(call):
            self._aside(call, answer(call))

    def _route(self, call: ClientCall) -> None:
        exchange, path = call.exchange, call.path
        route = self._find(path)
        if exchange.method == "OPTIONS":
            self._options(call, route)
        elif path in _OPEN_PATHS:
            self._serve_by(call, route)
        else:
            self._enter(call, lambda call: self._serve_by(call, route))

    def _serve_by(self, call: ClientCall, route: Route | None) -> None:
        if route is None:
            raise ClientFault(errors.NOT_FOUND, route_hint(call.exchange.method, call.path))
        serve = route.methods.get(call.exchange.method)
        if serve is None:
            call.refuse(ClientFault(errors.METHOD_NOT_ALLOWED), {"allow": ",".join(route.allowed)})
        else:
            serve(call)

    def _options(self, call: ClientCall, route: Route | None) -> None:
        """Answer OPTIONS: to a browser's preflight, which shows no key, and to any client that asks which methods a
        path has."""
        if route is None:
            raise ClientFault(errors.NOT_FOUND, route_hint("OPTIONS", call.path))
        methods = sorted({*route.allowed, "OPTIONS"})
        headers = {"allow": ", ".join(methods), **self._cors.preflight(call.exchange.headers, methods)}
        call.respond(204, b"", headers)

    # Entrance

    def _enter(self, call: ClientCall, serve: Serve) -> None:
        """Identify the client and let it in; then serve the call."""
        headers = call.exchange.headers
        if self._entrance.shows_token(headers):
            self._aside(call, self._identify(call, serve))
            return
        self._let_in(call, self._entrance.caller_of(headers), serve)

    async def _identify(self, call: ClientCall, serve: Serve) -> None:
        self._let_in(call, await self._entrance.identified(call.exchange.headers), serve)

    def _let_in(self, call: ClientCall, caller: Caller, serve: Serve) -> None:
        call.caller = caller
        meter = call.meter = self._entrance.meter_of(caller)
        if meter is not None:
            self._entrance.enter(meter)
            call.has_entered = True
        serve(call)

    # Calls of engines

    def _post(self, call: ClientCall) -> None:
        """Serve a call with a body."""
        if not self._takes(call):
            return
        exchange, caller = call.exchange, call.caller
        assert caller is not None, "it was let in"
        check_announced(exchange, self._settings.body_bytes_max)  # first: no room helps a body that is too large
        call.held = held = self._room.hold(owners_of(caller, exchange.peer_address, self._settings))
        is_prompt = exchange.is_complete and "content-encoding" not in exchange.headers
        if is_prompt and exchange.body_bytes <= min(TURN_BYTES, self._settings.body_bytes_max):
            body = exchange.take_body()
            held.take(len(body))
            self._begin_post(call, body)
        else:
            self._aside(call, self._upload(call))

    async def _upload(self, call: ClientCall) -> None:
        assert call.held is not None, "a body has room"
        self._begin_post(call, await self._uploads.read(call.exchange, call.held))

    def _control(self, call: ClientCall) -> None:
        """Serve a call about a stored response. Its path says everything; a body is ignored."""
        if not self._takes(call):
            return
        exchange, caller = call.exchange, call.caller
        assert caller is not None, "it was let in"
        target = exchange.target.decode("latin-1")
        path = target if exchange.method == "GET" else target.partition("?")[0]
        response_id = stored_response_of(exchange.method, path)
        if response_id is None:
            raise ClientFault(errors.ENDINGS[Outcome.REJECTED_UNKNOWN_RESPONSE])
        call.held = held = self._room.hold(owners_of(caller, exchange.peer_address, self._settings))
        held.take(0)
        is_stream = "stream=true" in target.partition("?")[2].split("&")
        profile = control_profile(response_id, caller, self._settings, stream=is_stream)
        headers = engine_headers(exchange.headers, caller.request_id)
        self._begin(call, OutboundRequest(profile, path, headers, b"", exchange.method))

    def _takes(self, call: ClientCall) -> bool:
        """Return true if the call may come in. Raises ClientFault while there is no audit record; a tenant that may not
        enter this region is refused by the core, so that every record tells of it."""
        if not self._has_audit():
            raise ClientFault(errors.AUDIT_UNAVAILABLE)
        caller = call.caller
        assert caller is not None, "it was let in"
        if self._may_enter(caller.tenant, caller.process):
            return True
        outbound = OutboundRequest(unread_profile(caller, self._settings), call.path, (), b"", call.exchange.method)
        call.request = request = self._request_of(call, outbound)
        request.begin()
        return False

    def _begin_post(self, call: ClientCall, body: bytes) -> None:
        exchange, caller = call.exchange, call.caller
        assert caller is not None, "it was let in"
        if self._context.port.is_open(caller.request_id):  # another one began while this body arrived
            caller.request_id = fresh_request_id()
        headers: Headers = engine_headers(exchange.headers, caller.request_id)
        parsed = read_request(
            call.path,
            body,
            caller,
            self._settings,
            self._names,
            contents=self._contents,
            promises=self._promises,
            media_tokens=self._media_tokens,
        )
        call.media = parsed.media
        outbound = OutboundRequest(
            parsed.profile,
            call.path,
            headers,
            parsed.body,
            asked_model=parsed.asked_model,
            stores_response=parsed.stores_response,
            cache_salt=parsed.cache_salt,
        )
        if parsed.asked_model:
            call.say(MODEL_HEADER, parsed.profile.model)
        self._begin(call, outbound)

    def _begin(self, call: ClientCall, outbound: OutboundRequest) -> None:
        caller = call.caller
        assert caller is not None, "it was let in"
        request = self._request_of(call, outbound)
        tokens = self._entrance.reservation(request.profile, generates=request.summary.generates)
        call.taken = self._entrance.take(caller, call.meter, tokens)
        call.tokens = tokens
        call.request = request
        call.exchange.on_writable = request.on_writable
        silence_s = self._settings.keep_alive_comments_s
        if silence_s is not None and request.profile.stream:
            call.keep_alive(silence_s)
        request.begin()

    def _request_of(self, call: ClientCall, outbound: OutboundRequest) -> ProxiedRequest:
        caller, held = call.caller, call.held
        assert caller is not None, "it was let in"
        patience_ns = self._settings.request_deadline_ns
        if caller.patience_ns is not None:
            patience_ns = min(patience_ns, caller.patience_ns)
        arrival = RequestArrived(outbound.profile, self._clock.now_ns() + patience_ns)
        return ProxiedRequest(self._context, arrival, outbound, call, hold=None if held is None else held.keep)

    # Other pages

    def _list_models(self, call: ClientCall) -> None:
        _give(call, models_page(self.models_of(_caller_of(call)), call.shape))

    def _show_model(self, call: ClientCall) -> None:
        name = ModelName(call.path.removeprefix(f"{_MODELS}/"))
        if name not in self.models_of(_caller_of(call)):
            raise ClientFault(errors.MODEL_NOT_FOUND)
        _give(call, model_entry(name, call.shape))

    def models_of(self, caller: Caller) -> list[ModelName]:
        """Names of models that the caller may use."""
        listed = self._names.listed(self._models(caller.tenant, caller.process))
        return [each for each in listed if self.meant_by(caller, each)]

    def meant_by(self, caller: Caller, name: ModelName) -> list[ModelName]:
        """Models that the caller may use under a name."""
        return [each for each in self._names.stands_for(name) if caller.may_use(each, asked=name)]

    def _show_root(self, call: ClientCall) -> None:
        """Identify the service: some clients and, by default, balancers ask for this path first."""
        _give(call, {"name": SERVER_NAME, "gateway": self._settings.gateway_id, "api": "/openapi.yaml"})

    def _show_live(self, call: ClientCall) -> None:
        _give(call, live_page())

    def _show_ready(self, call: ClientCall) -> None:
        status, page = ready_page(self._readiness())
        _give(call, page, status)

    def _show_description(self, call: ClientCall) -> None:
        call.respond(200, self._description, {"content-type": "application/yaml; charset=utf-8"})


def _give(call: ClientCall, document: object, status: int = 200) -> None:
    call.respond(status, msgspec.json.encode(document), _JSON)


def _caller_of(call: ClientCall) -> Caller:
    assert call.caller is not None, "it was let in"
    return call.caller
