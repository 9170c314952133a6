"""Authenticates clients and enforces their keys' limits and budgets. Every route but `/` and health lies behind it.

It must never log, keep or pass on a credential, nor answer a missing key differently from a wrong one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import chain

from aiohttp import web

from gateway.core.kernel.limits_config import TRY_AGAIN_NS, Room
from gateway.core.vocabulary import RequestId, RequestProfile, TenantName
from gateway.door.errors import (
    BUDGET_EXCEEDED,
    CONCURRENCY_EXCEEDED,
    HEADERS_TOO_LARGE,
    INVALID_API_KEY,
    REQUEST_RATE_EXCEEDED,
    TOKEN_RATE_EXCEEDED,
    USAGE_UNKNOWN,
    ClientFault,
    ErrorKind,
    retried_after,
)
from gateway.door.limits import Exceeded, KeyMeter, Limit, Meters, rate_headers
from gateway.door.parse import Caller, choose_request_id, fresh_request_id, read_caller
from gateway.door.settings import HttpSettings
from gateway.door.token_errors import token_fault
from gateway.records.usage_book import Spent, UsageBook, Used
from gateway.request.callers import NO_BUDGET, ClientKey, KeyCheck, KeyId, TenantBudget
from gateway.request.legs import RequestSummary
from gateway.request.usage import prompt_guess, tokens_used
from mesh.admin_server import HEALTH_PATHS, credential_of
from mesh.clock import Clock
from mesh.tokens.tokens import Tokens
from mesh.tokens.words import TokenRefused, looks_like_token

CALLER = web.RequestKey("caller", Caller)
_METER = web.RequestKey("meter", KeyMeter)
Rooms = Callable[[TenantName, int], Sequence[Room]]
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

ROOT_PATH = "/"
_OPEN_PATHS = HEALTH_PATHS | {ROOT_PATH}
_NOBODY = KeyId("")
_KINDS: dict[Limit, ErrorKind] = {
    Limit.CONCURRENCY: CONCURRENCY_EXCEEDED,
    Limit.REQUESTS: REQUEST_RATE_EXCEEDED,
    Limit.TOKENS: TOKEN_RATE_EXCEEDED,
}


class Entrance:
    """Lets clients in, each with its Caller under `request[CALLER]`, and counts what their keys use."""

    def __init__(
        self,
        settings: HttpSettings,
        clock: Clock,
        is_running: Callable[[RequestId], bool],
        check_key: KeyCheck | None,
        *,
        tokens: Tokens[ClientKey] | None = None,
        book: UsageBook | None = None,
        tenant_budget: TenantBudget = lambda _: NO_BUDGET,
        rooms: Rooms = lambda _tenant, _now_ns: (),
    ) -> None:
        """`is_running` tells whether a request with that id runs here. Without `check_key` and `tokens` every client is
        let in: only this machine, or a proxy in front of it, should be able to connect then. `book` records usage;
        `rooms` says what is left of tenants' limits."""
        self._settings = settings
        self._clock = clock
        self._is_running = is_running
        self._check_key = check_key
        self._tokens = tokens
        self._meters = Meters()
        self._book = UsageBook() if book is None else book
        self._tenant_budget = tenant_budget
        self._rooms = rooms

    def install(self, app: web.Application) -> None:
        """Add the middleware, behind the one that answers ClientFaults and before every handler."""
        app.middlewares.append(self.let_in)

    def headers(self, request: web.Request) -> Mapping[str, str]:
        """Rate-limit headers for every answer to the caller."""
        meter, caller = _meter_of(request), request.get(CALLER)
        if caller is None:
            return {}
        now_ns = self._clock.now_ns()
        rooms = self._rooms(caller.tenant, now_ns)
        return rate_headers(meter, now_ns, rooms) if rooms or meter is not None else {}

    async def authenticate(self, request: web.Request) -> Caller:
        """Identify the caller. Raises ClientFault. A token is recognised by its form, so that no issuer is asked about
        a key."""
        key = None
        if self._tokens is not None and looks_like_token(credential := credential_of(request.headers)):
            key = await _holder_of(credential, self._tokens)
        elif self._check_key is not None or self._tokens is not None:
            key = None if self._check_key is None else self._check_key(credential_of(request.headers))
            if key is None:
                raise ClientFault(INVALID_API_KEY)
        return read_caller(request.headers, self._request_id_of(request), self._settings, key)

    def charging(
        self, request: web.Request, profile: RequestProfile, summary: RequestSummary
    ) -> AbstractContextManager[object]:
        """Context to run a request in, which charges its tokens. `summary` is read at the end, when the owner has
        filled it in."""
        caller = request[CALLER]
        output = self._settings.output_tokens_reserved
        if profile.output_tokens_max is not None:
            output = max(profile.output_tokens_max, 0)
        tokens = prompt_guess(profile) + output if summary.generates else 0
        return _Charge(self, caller, _meter_of(request), profile=profile, summary=summary, tokens=tokens)

    def take(self, caller: Caller, meter: KeyMeter | None, tokens: int) -> int:
        """Reserve tokens for a request; returns how many of them count against the key's minute. Raises ClientFault if
        too few are left, and reserves none then."""
        wall_ns, key = self._clock.wall_ns(), caller.key
        if key is not None and tokens:
            budgets = key.budget, self._tenant_budget(caller.tenant)
            if self._book.is_unknown and budgets != (NO_BUDGET, NO_BUDGET):
                raise ClientFault(USAGE_UNKNOWN)
            spent = self._book.spent(key.key_id, caller.tenant, budgets, wall_ns)
            if spent is not None:
                raise ClientFault(_budget_kind(spent), f"of this {spent.whose}, {spent.budget} tokens a {spent.period}")
        taken = 0
        if meter is not None:
            taken = _within(meter, tokens)
            _refuse_if(meter.take_tokens(taken, self._clock.now_ns()))
        self._book.set_aside(_key_id(caller), caller.tenant, tokens)
        return taken

    def settle(
        self,
        caller: Caller,
        meter: KeyMeter | None,
        profile: RequestProfile,
        summary: RequestSummary,
        *,
        tokens: int,
        taken: int,
    ) -> None:
        """Replace the reservation by the tokens used."""
        used = tokens_used(profile, summary)
        if meter is not None:
            meter.settle_tokens(taken, used.total, self._clock.now_ns())
        cached = min(summary.cached_tokens or 0, used.prompt)
        row = Used(int(summary.generates), used.prompt, cached, used.output)
        self._book.settle(_key_id(caller), caller.tenant, tokens, row, self._clock.wall_ns())

    @web.middleware
    async def let_in(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if sum(map(len, chain.from_iterable(request.raw_headers))) > self._settings.headers_bytes_max:
            raise ClientFault(HEADERS_TOO_LARGE)
        if request.path in _OPEN_PATHS:
            return await handler(request)
        caller = request[CALLER] = await self.authenticate(request)
        if caller.key is None:
            return await handler(request)
        meter = request[_METER] = self._meters.of(caller.key)
        _refuse_if(meter.enter(self._clock.now_ns()))
        try:
            return await handler(request)
        finally:
            meter.leave()

    def _request_id_of(self, request: web.Request) -> RequestId:
        """Request id of the client, or a fresh one if a request with that id runs here already."""
        wanted = choose_request_id(request.headers)
        return fresh_request_id() if self._is_running(wanted) else wanted


class _Charge:
    """Reserves tokens while a request runs, and replaces them at its end by those really used.

    Entering it raises ClientFault if too few are left.
    """

    __slots__ = ("_caller", "_entrance", "_meter", "_profile", "_summary", "_taken", "_tokens")

    def __init__(
        self,
        entrance: Entrance,
        caller: Caller,
        meter: KeyMeter | None,
        *,
        profile: RequestProfile,
        summary: RequestSummary,
        tokens: int,
    ) -> None:
        self._entrance = entrance
        self._caller = caller
        self._meter = meter
        self._profile = profile
        self._summary = summary
        self._tokens = tokens
        self._taken = 0

    def __enter__(self) -> None:
        self._taken = self._entrance.take(self._caller, self._meter, self._tokens)

    def __exit__(self, *_: object) -> None:
        self._entrance.settle(
            self._caller, self._meter, self._profile, self._summary, tokens=self._tokens, taken=self._taken
        )


async def _holder_of(token: str, tokens: Tokens[ClientKey]) -> ClientKey:
    try:
        return await tokens.identify(token)
    except TokenRefused as refused:
        raise token_fault(refused) from refused


def _key_id(caller: Caller) -> KeyId:
    return _NOBODY if caller.key is None else caller.key.key_id


def _budget_kind(spent: Spent) -> ErrorKind:
    """Kind of the refusal. Clients may retry where a running request holds the rest of the budget, and not where a new
    day must come."""
    kind = retried_after(BUDGET_EXCEEDED, spent.wait_ns)
    return replace(kind, may_retry=True) if spent.wait_ns <= TRY_AGAIN_NS else kind


def _meter_of(request: web.Request) -> KeyMeter | None:
    """Meter of the caller's key; None where no key was needed."""
    try:
        return request[_METER]
    except KeyError:
        return None


def _within(meter: KeyMeter, tokens: int) -> int:
    """Tokens to reserve, at most a full bucket: no request needs more to begin, and what it uses beyond is settled at
    its end."""
    return tokens if meter.tokens is None else min(tokens, meter.tokens.per_minute)


def _refuse_if(exceeded: Exceeded | None) -> None:
    if exceeded is None:
        return
    kind = _KINDS[exceeded.limit]
    if exceeded.wait_ns:
        kind = retried_after(kind, exceeded.wait_ns)
    raise ClientFault(kind)
