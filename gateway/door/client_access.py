"""Authenticates clients and enforces their keys' limits and budgets. Every route but `/` and health lies behind it.

It must never log, keep or pass on a credential, nor answer a missing key differently from a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from gateway.core.allowance import TRY_AGAIN_NS, LimitAllowance
from gateway.core.vocabulary import RequestId, RequestProfile, TenantName
from gateway.door.errors import (
    BUDGET_EXCEEDED,
    CONCURRENCY_EXCEEDED,
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
from gateway.records.usage_book import Spent, UsageAmounts, UsageBook
from gateway.request.callers import NO_BUDGET, ClientKey, KeyCheck, KeyId, TenantBudget
from gateway.request.legs import RequestSummary
from gateway.request.usage import prompt_guess, tokens_used
from mesh.admin_server import credential_of
from mesh.clock import Clock
from mesh.tokens.tokens import Tokens
from mesh.tokens.words import TokenRefused, looks_like_token

LimitAllowances = Callable[[TenantName, int], Sequence[LimitAllowance]]

_NO_KEY = KeyId("")
_KINDS: dict[Limit, ErrorKind] = {
    Limit.CONCURRENCY: CONCURRENCY_EXCEEDED,
    Limit.REQUESTS: REQUEST_RATE_EXCEEDED,
    Limit.TOKENS: TOKEN_RATE_EXCEEDED,
}


class ClientAccess:
    """Tells who a client is, and counts what its key uses."""

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
        allowances: LimitAllowances = lambda _tenant, _now_ns: (),
    ) -> None:
        """`is_running` tells whether a request with that id runs here. Without `check_key` and `tokens` every client is
        let in: only this machine, or a proxy in front of it, should be able to connect then. `book` records usage;
        `allowances` says what is left of tenants' limits."""
        self._settings = settings
        self._clock = clock
        self._is_running = is_running
        self._check_key = check_key
        self._tokens = tokens
        self._meters = Meters()
        self._book = UsageBook() if book is None else book
        self._tenant_budget = tenant_budget
        self._allowances = allowances

    def headers(self, caller: Caller, meter: KeyMeter | None) -> Mapping[str, str]:
        """Rate-limit headers for every answer to the caller."""
        now_ns = self._clock.now_ns()
        allowances = self._allowances(caller.tenant, now_ns)
        return rate_headers(meter, now_ns, allowances) if allowances or meter is not None else {}

    def shows_token(self, headers: Mapping[str, str]) -> bool:
        """True if the client shows an issuer's token, which `identified` has to look at. A token is recognised by its
        form, so that no issuer is asked about a key."""
        return self._tokens is not None and looks_like_token(credential_of(headers))

    async def identified(self, headers: Mapping[str, str]) -> Caller:
        """Identify the holder of a token. Raises ClientFault."""
        assert self._tokens is not None, "there are issuers"
        try:
            key = await self._tokens.identify(credential_of(headers))
        except TokenRefused as refused:
            raise token_fault(refused) from refused
        return self._caller(headers, key)

    def caller_of(self, headers: Mapping[str, str]) -> Caller:
        """Identify a client that shows no token. Raises ClientFault."""
        key = None
        if self._check_key is not None or self._tokens is not None:
            key = None if self._check_key is None else self._check_key(credential_of(headers))
            if key is None:
                raise ClientFault(INVALID_API_KEY)
        return self._caller(headers, key)

    def _caller(self, headers: Mapping[str, str], key: ClientKey | None) -> Caller:
        """Caller with the request id that the client wants, or a fresh one if a request of that id runs here."""
        wanted = choose_request_id(headers)
        request_id = fresh_request_id() if self._is_running(wanted) else wanted
        return read_caller(headers, request_id, self._settings, key)

    def meter_of(self, caller: Caller) -> KeyMeter | None:
        """Meter of the caller's key; None where no key was needed."""
        return None if caller.key is None else self._meters.of(caller.key)

    def enter(self, meter: KeyMeter) -> None:
        """Take a place and one request of a key, until its meter is left. Raises ClientFault."""
        _refuse_if(meter.enter(self._clock.now_ns()))

    def reservation(self, profile: RequestProfile, *, generates: bool) -> int:
        """Tokens to reserve for a request."""
        if not generates:
            return 0
        output = self._settings.output_tokens_reserved
        if profile.output_tokens_max is not None:
            output = max(profile.output_tokens_max, 0)
        return prompt_guess(profile) + output

    def take(self, caller: Caller, meter: KeyMeter | None, tokens: int) -> int:
        """Reserve tokens for a request; returns how many of them count against the key's minute. Raises ClientFault if
        too few are left, and reserves none then."""
        key = caller.key
        if key is not None and tokens:
            wall_ns, budgets = self._clock.wall_ns(), (key.budget, self._tenant_budget(caller.tenant))
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
        row = UsageAmounts(int(summary.generates), used.prompt, cached, used.output)
        self._book.settle(_key_id(caller), caller.tenant, tokens, row, self._clock.wall_ns())


def _key_id(caller: Caller) -> KeyId:
    return _NO_KEY if caller.key is None else caller.key.key_id


def _budget_kind(spent: Spent) -> ErrorKind:
    """Kind of the refusal. Clients may retry where a running request holds the rest of the budget, and not where a new
    day must come."""
    kind = retried_after(BUDGET_EXCEEDED, spent.wait_ns)
    return replace(kind, may_retry=True) if spent.wait_ns <= TRY_AGAIN_NS else kind


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
