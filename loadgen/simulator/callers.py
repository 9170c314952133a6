"""Request of a client that knows only the mesh's name: the name is looked up, the addresses are tried in turn, and a
request that failed before its first token is retried after a delay, as the official SDKs do by default.

Each failed request is attributed to a cause: a process that died while it ran, a cached answer, an outdated DNS record,
or the mesh itself. A request's way beyond the gateway is invisible here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import StrEnum

from msgspec.structs import replace

from gateway.core.vocabulary import GatewayId, Notes, Outcome, RefusalReason, RequestId
from loadgen.simulator.client_requests import TRY_MARK, ClientRequest, SimRanAt
from loadgen.simulator.clients import LEFT, ClientWorld, finish
from loadgen.simulator.gateways import SimGateway
from loadgen.simulator.naming import DnsAnswer, Names
from loadgen.simulator.network import NetworkLine

_TRIED_AGAIN = frozenset(
    {
        Outcome.REJECTED_QUEUE_FULL,
        Outcome.REJECTED_DRAINING,
        Outcome.REJECTED_TENANT_LIMIT,
        Outcome.REJECTED_DEADLINE,
        Outcome.REJECTED_TENANT_CONCURRENCY,
        Outcome.REJECTED_TENANT_REQUEST_RATE,
        Outcome.REJECTED_TENANT_TOKEN_RATE,
        Outcome.EXPIRED_IN_QUEUE,
        Outcome.FAILED_BEFORE_FIRST_BYTE,
        Outcome.FAILED_INTERNALLY,
    }
)
"""Outcomes that are answered with 429 or 5xx, after which clients retry."""


_JITTER_SHARE = 0.25
_TIMED_OUT = "no connection in time"


class FailedBy(StrEnum):
    """Cause of a failure that a client observed."""

    IN_FLIGHT = "in_flight"
    """The process that had the request died, or was cut off."""
    CACHED_ANSWER = "cached_answer"
    """The DNS records had been changed, and a cache still gave the old answer."""
    OLD_ANSWER = "old_answer"
    """The DNS records themselves still named a gateway that is gone, or named none."""
    NO_ANSWER = "no_answer"
    """No name server answered."""
    MESH = "mesh"
    """A gateway answered, with a refusal or an error of its own."""
    CLIENT = "client"
    """The client left, or sent a request that is not allowed."""
    UNCLASSIFIED = "unclassified"
    """No cause applies; this must not occur."""


_CLIENTS = frozenset(
    {
        Outcome.CLIENT_ERROR,
        Outcome.ABANDONED,
        Outcome.REJECTED_UNKNOWN_MODEL,
        Outcome.REJECTED_RESIDENCY_INGRESS,
        Outcome.REJECTED_RESIDENCY_PROCESSING,
        Outcome.REJECTED_UNKNOWN_RESPONSE,
    }
)


class SimCaller:
    """One request as its client holds it, over all of its tries."""

    def __init__(
        self,
        town: ClientWorld,
        names: Names,
        gateways: Mapping[GatewayId, SimGateway],
        request: ClientRequest,
        on_end: Callable[[ClientRequest], None],
    ) -> None:
        self._town = town
        self._names = names
        self._gateways = gateways
        self._request = request
        self._on_end = on_end
        self.connect_timeout_ns = names.section.connect_timeout
        self._try: _Try | None = None
        self._is_over = False
        self._sent = 0
        self._retries = 0
        self._look_up()

    def leave(self) -> None:
        if not self._is_over:
            if self._try is not None:
                self._try.close(LEFT)
            self._end(None, LEFT, FailedBy.CLIENT)

    def first_token(self, ran_at: SimRanAt) -> None:
        request, now_ns = self._request, self._town.agenda.now_ns
        self._town.watch.client_heard(request, now_ns)
        request.first_token_ns = now_ns
        request.ran_at = ran_at

    def answered(self, outcome: Outcome, detail: str) -> None:
        """Handle the outcome that a gateway reported."""
        if outcome is Outcome.COMPLETED:
            self._end(outcome, detail, None)
            return
        failed_by = FailedBy.CLIENT if outcome in _CLIENTS else FailedBy.MESH
        self._failed(outcome, detail, failed_by, may_try_again=outcome in _TRIED_AGAIN)

    def broke(self, gateway_id: GatewayId, detail: str, *, was_there: bool) -> None:
        """Handle a broken connection. `was_there`: the request had reached the gateway's process."""
        if was_there:
            self._failed(None, detail, FailedBy.IN_FLIGHT)
        elif self._names.says_now(self._request.region, gateway_id):
            self._failed(None, detail, FailedBy.OLD_ANSWER)
        else:
            self._failed(None, detail, FailedBy.CACHED_ANSWER)

    def _look_up(self) -> None:
        if not self._is_over:
            self._names.look_up(self._request.region, self._looked_up)

    def _looked_up(self, answer: DnsAnswer | None) -> None:
        if self._is_over:
            return
        if answer is None:
            self._failed(None, "the name could not be resolved", FailedBy.NO_ANSWER)
        elif not answer.gateways:
            self._failed(None, "the name answers with no gateway", FailedBy.OLD_ANSWER)
        else:
            addresses = list(answer.gateways)
            self._names.rng.shuffle(addresses)
            self._connect(addresses)

    def try_next(self, addresses: list[GatewayId]) -> None:
        """Connect to the next address after the one before was unreachable."""
        if not self._is_over:
            self._connect(addresses)

    def _connect(self, addresses: list[GatewayId]) -> None:
        gateway_id, *others = addresses
        request = self._request
        request.gateway_id = gateway_id
        sent = request if self._sent == 0 else self._again(request)
        self._sent += 1
        self._try = _Try(self, self._town, self._gateways[gateway_id], sent, others)

    def _again(self, request: ClientRequest) -> ClientRequest:
        request_id = RequestId(f"{request.request_id}{TRY_MARK}{self._sent}")
        return dataclasses.replace(request, profile=replace(request.profile, request_id=request_id))

    def _failed(self, outcome: Outcome | None, detail: str, failed_by: FailedBy, *, may_try_again: bool = True) -> None:
        request, section = self._request, self._names.section
        self._try = None
        if not may_try_again or request.first_token_ns is not None or self._retries >= section.retries:
            self._end(outcome, detail, failed_by)
            return
        wait_ns = min(section.back_off << self._retries, section.back_off_max)
        wait_ns -= int(wait_ns * _JITTER_SHARE * self._names.rng.random())
        self._retries += 1
        request.tries += 1
        self._town.agenda.after(wait_ns, self._look_up)

    def _end(self, outcome: Outcome | None, detail: str, failed_by: FailedBy | None) -> None:
        request, town = self._request, self._town
        self._is_over = True
        request.outcome, request.detail = outcome, detail
        request.failed_by = "" if failed_by is None else str(failed_by)
        town.watch.client_ended(request, outcome, town.agenda.now_ns)
        request.ended_ns = town.agenda.now_ns
        finish(town, request)
        self._on_end(request)


class _Try:
    """One connection to one gateway: the near end of a line."""

    def __init__(
        self,
        caller: SimCaller,
        town: ClientWorld,
        gateway: SimGateway,
        request: ClientRequest,
        others: list[GatewayId],
    ) -> None:
        self._caller = caller
        self._gateway = gateway
        self._request = request
        self._others = others
        self._is_open = True
        self._was_there = False
        """True once the request has reached a running process."""
        self._line: NetworkLine = town.network.connect(request.region, gateway.region, self.broke, self._left)
        self._line.far_process = gateway.process
        self._line.to_far(self._arrive)
        town.agenda.after(caller.connect_timeout_ns, self._look_whether_connected)

    def close(self, detail: str) -> None:
        if self._is_open:
            self._is_open = False
            self._line.close_near(detail)

    def forward_accepted(self) -> None:
        raise AssertionError("a client forwards nothing")

    def forward_refused(self, reason: RefusalReason, detail: str) -> None:
        raise AssertionError(f"a client forwards nothing: {reason}, {detail}")

    def first_token(self, ran_at: SimRanAt) -> None:
        if self._is_open:
            self._caller.first_token(ran_at)

    def ended(self, outcome: Outcome, detail: str, notes: Notes) -> None:  # noqa: ARG002 - clients do not count
        if self._is_open:
            self._is_open = False
            self._line.finish()
            self._caller.answered(outcome, detail)

    def broke(self, detail: str) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if self._others and not self._was_there:
            self._caller.try_next(self._others)
        else:
            self._caller.broke(self._gateway.gateway_id, detail, was_there=self._was_there)

    def _arrive(self) -> None:
        if self._is_open:
            self._was_there = self._gateway.is_up
            self._gateway.request_arrives(self._request, self._line, self)

    def _left(self, _: str) -> None:
        self._gateway.upstream_left(self._line, self._request.request_id)

    def _look_whether_connected(self) -> None:
        if self._is_open and not self._was_there:
            self._line.close_near(_TIMED_OUT)
            self.broke(_TIMED_OUT)
