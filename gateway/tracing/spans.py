"""Spans of a finished request: the request itself, each wait and placement, each leg, its first token, and each pause
of a broken answer. They are made afterwards from the record that the core has kept; pure, and without OpenTelemetry.

No span holds text of a request or an answer, a key or a client's address; a tenant only where the policy lets logs name
it. Text from other programs stays out: a failure is named by its class, never by its detail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from gateway.core.kernel.effects import EndRequest
from gateway.core.kernel.requests import LegState, RequestRecord
from gateway.core.kernel.residency import LoggingRule
from gateway.core.vocabulary import (
    Candidate,
    GatewayId,
    LegResult,
    LegRole,
    RequestProfile,
    Target,
    TargetKind,
)
from gateway.records.decisions import decision_id
from gateway.records.finished import rule_applied
from gateway.request.engine_api import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    COUNT_TOKENS_PATH,
    DETOKENIZE_PATH,
    EMBEDDINGS_PATH,
    MESSAGES_PATH,
    RERANK_PATHS,
    RESPONSES_PATH,
    SCORE_PATHS,
    TOKENIZE_PATH,
)
from gateway.request.legs import RequestSummary
from gateway.request.trace_context import RequestTrace, fresh_span_id
from gateway.tracing.sampling import FAILURES, KeptBecause
from mesh.values import MILLISECOND_NS, SECOND_NS

Attribute = str | int | float | bool
Attributes = dict[str, Attribute]

_OPERATIONS = {
    CHAT_PATH: "chat",
    RESPONSES_PATH: "chat",
    MESSAGES_PATH: "chat",
    COMPLETIONS_PATH: "text_completion",
    EMBEDDINGS_PATH: "embeddings",
    COUNT_TOKENS_PATH: "count_tokens",
    TOKENIZE_PATH: "tokenize",
    DETOKENIZE_PATH: "detokenize",
    **dict.fromkeys(RERANK_PATHS, "rerank"),
    **dict.fromkeys(SCORE_PATHS, "score"),
}
"""Values of `gen_ai.operation.name` by path: the well-known ones where there are any."""
_STORED = "stored_response"
_STORED_ROUTE = f"{RESPONSES_PATH}/{{id}}"
_ANTHROPIC_PATHS = frozenset({MESSAGES_PATH, COUNT_TOKENS_PATH})
_NO_FAULT = frozenset({LegResult.COMPLETED, LegResult.CANCELLED, LegResult.TAKEN_BACK, None})


class Kind(StrEnum):
    SERVER = "server"
    CLIENT = "client"
    INTERNAL = "internal"


class SpanEvent(Struct, frozen=True):
    """Event at one moment of a span."""

    name: str
    at_ns: int
    attributes: Attributes


class Span(Struct, frozen=True):
    """Span of a request. Times are the gateway's own, in nanoseconds."""

    name: str
    span_id: str
    parent_id: str
    """Parent span; empty for a span that begins a trace."""
    start_ns: int
    end_ns: int
    attributes: Attributes
    kind: Kind = Kind.INTERNAL
    happenings: Sequence[SpanEvent] = ()
    is_error: bool = False
    has_remote_parent: bool = False
    links_to_cause: bool = False


class Server(Struct, frozen=True):
    """Server that a leg connects to."""

    address: str
    port: int
    provider: str = ""
    """Dialect of an engine, as the provider's name; empty for a peer."""


ServerOf = Callable[[Target], Server | None]
"""Finds the server of a target; None where the target is not known any more."""


class FinishedRequest(Struct, frozen=True):
    """Data of a finished request, once its owner is done. It does not change afterwards."""

    profile: RequestProfile
    end: EndRequest
    summary: RequestSummary
    record: RequestRecord | None
    trace: RequestTrace
    kept: KeptBecause
    ended_ns: int
    wall_offset_ns: int
    """Nanoseconds to add to the gateway's times to get wall-clock times."""
    logging: LoggingRule
    is_model_known: bool
    """A replica or peer serves the model; otherwise its name is only a client's text."""

    @property
    def model(self) -> str:
        return self.profile.model if self.is_model_known else ""


def spans_of(request: FinishedRequest, gateway_id: GatewayId, server_of: ServerOf) -> list[Span]:
    """Spans of a request, its own first. Without a record that is the only one."""
    spans = [_whole(request)]
    if request.record is not None:
        teller = _SpanBuilder(request, request.record, gateway_id, server_of)
        spans += teller.waits()
        for leg in request.record.legs:
            spans += teller.leg(leg)
    return spans


def _whole(request: FinishedRequest) -> Span:
    record, summary, trace = request.record, request.summary, request.trace
    arrived_ns = request.ended_ns - summary.duration_ns if record is None else record.arrived_ns
    outcome = request.end.outcome
    is_error = outcome in FAILURES
    attributes: Mapping[str, Attribute | None] = {
        **_asked(request),
        "gen_ai.provider.name": "anthropic" if trace.path in _ANTHROPIC_PATHS else "openai",
        "gen_ai.usage.input_tokens": summary.prompt_tokens,
        "gen_ai.usage.output_tokens": summary.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": summary.cached_tokens,
        "gen_ai.response.time_to_first_chunk": _seconds(summary.first_token_ns) if request.profile.stream else None,
        "http.route": trace.path if trace.path in _OPERATIONS else _STORED_ROUTE,
        "error.type": str(outcome) if is_error else None,
        "nightside.request.id": request.profile.request_id,
        "nightside.outcome": str(outcome),
        "nightside.attempts": request.end.attempts,
        "nightside.resumes": summary.segments or None,
        "nightside.kept": str(request.kept),
        "nightside.tenant": request.profile.tenant if request.logging.tenant else None,
        "nightside.service_class": str(request.profile.service_class),
        "nightside.hints": request.profile.hints.words() or None,
        "nightside.prompt.bytes": request.profile.prompt_bytes,
        "nightside.ran.region": summary.ran_at.place.region if summary.ran_at else None,
        "nightside.ran.jurisdiction": summary.ran_at.place.jurisdiction if summary.ran_at else None,
        "nightside.ran.replica": summary.ran_at.replica_id if summary.ran_at else None,
        **({} if record is None else _came(record)),
    }
    return Span(
        _name(request),
        trace.own.span_id,
        "" if trace.parent is None else trace.parent.span_id,
        arrived_ns,
        max(request.ended_ns, arrived_ns),
        _said(attributes),
        Kind.SERVER,
        is_error=is_error,
        has_remote_parent=trace.parent is not None,
        links_to_cause=trace.cause is not None,
    )


def _came(record: RequestRecord) -> Mapping[str, Attribute | None]:
    """Origin of the request, and its residency policy."""
    origin = record.origin
    return {
        "nightside.residency.policy": record.policy.digest,
        "nightside.origin.gateway": None if origin is None else origin.gateway_id,
        "nightside.origin.region": None if origin is None else origin.place.region,
        "nightside.hops.in_region": 0 if origin is None else origin.hops.in_region,
        "nightside.hops.cross_region": 0 if origin is None else origin.hops.cross_region,
        "nightside.shadow.target": None if record.shadow is None else str(record.shadow.target),
    }


class _SpanBuilder:
    """Makes the spans of one request's parts."""

    def __init__(
        self, request: FinishedRequest, record: RequestRecord, gateway_id: GatewayId, server_of: ServerOf
    ) -> None:
        self._request = request
        self._record = record
        self._gateway_id = gateway_id
        self._server_of = server_of
        self._own_id = request.trace.own.span_id

    def waits(self) -> Iterator[Span]:
        """Spans of the times before the last leg when no leg ran; of a request without legs, the whole time."""
        since_ns = self._record.arrived_ns
        for leg in self._record.legs:
            if leg.started_ns > since_ns:
                yield self._inner("wait", since_ns, leg.started_ns, {"nightside.attempt": leg.attempt})
            since_ns = max(since_ns, self._ended_ns(leg))
        if not self._record.legs and self._request.ended_ns > since_ns:
            yield self._inner("wait", since_ns, self._request.ended_ns, {})

    def leg(self, leg: LegState) -> Iterator[Span]:
        """Spans of a leg: its placement, the pause before it, the leg itself, and its first token."""
        leg_id = self._request.trace.leg_id(leg.attempt, leg.number)
        yield self._placement(leg)
        if leg.segment:
            yield self._pause(leg)
        yield self._run(leg, leg_id)
        if leg.first_token_ns is not None:
            yield Span("first_token", fresh_span_id(), leg_id, leg.started_ns, leg.first_token_ns, self._number(leg))

    def _placement(self, leg: LegState) -> Span:
        """Placement as a span of no duration: the wait before it has a span of its own."""
        decision, pool = leg.decision, leg.decision.pool
        policy, why = rule_applied(self._request.profile, self._record, leg)
        attributes: Mapping[str, Attribute | None] = {
            **self._number(leg),
            **_about(leg),
            "nightside.placement.reason": str(decision.reason),
            "nightside.placement.candidates": decision.candidates,
            "nightside.placement.waited_ms": decision.waited_ns // MILLISECOND_NS,
            "nightside.prefix.matched_blocks": decision.matched_blocks,
            "nightside.prefix.prompt_blocks": decision.prompt_blocks,
            "nightside.residency.policy": policy.digest,
            "nightside.residency.rule": why,
            "nightside.pool": None if pool is None else pool.pool,
            "nightside.pool.step": None if pool is None else str(pool.step),
        }
        candidates = [SpanEvent("candidate", leg.started_ns, _candidate(each)) for each in decision.considered]
        at_ns = leg.started_ns
        return Span("placement", fresh_span_id(), self._own_id, at_ns, at_ns, _said(attributes), happenings=candidates)

    def _pause(self, leg: LegState) -> Span:
        """Pause that the client saw, from the break to the next token."""
        earlier = [each.ended_ns for each in self._record.legs if each.attempt < leg.attempt and each.ended_ns]
        since_ns = max(earlier, default=leg.started_ns)
        until_ns = leg.first_token_ns or self._ended_ns(leg)
        attributes = {**self._number(leg), "nightside.resume": leg.segment}
        return self._inner("pause", min(since_ns, until_ns), until_ns, attributes)

    def _run(self, leg: LegState, leg_id: str) -> Span:
        request, ended, server = self._request, leg.ended, self._server_of(leg.target)
        is_peer, is_error = leg.target.kind is TargetKind.PEER, leg.result not in _NO_FAULT
        first_ns = None if leg.first_token_ns is None else leg.first_token_ns - leg.started_ns
        refusal = None if ended is None or ended.refusal is None else str(ended.refusal)
        asks_engine: Mapping[str, Attribute | None] = {
            **_asked(request),
            "gen_ai.provider.name": None if server is None else server.provider or None,
            "gen_ai.usage.input_tokens": None if ended is None else ended.prompt_tokens,
            "gen_ai.usage.output_tokens": None if ended is None else ended.output_tokens,
            "gen_ai.response.time_to_first_chunk": _seconds(first_ns) if request.profile.stream else None,
        }
        attributes: Mapping[str, Attribute | None] = {
            **({} if is_peer else asks_engine),
            **self._number(leg),
            **_about(leg),
            "server.address": None if server is None else server.address,
            "server.port": None if server is None else server.port,
            "error.type": (refusal or str(leg.result)) if is_error else None,
            "nightside.leg.role": str(leg.role),
            "nightside.leg.result": "open" if leg.result is None else str(leg.result),
            "nightside.resume": leg.segment or None,
        }
        return Span(
            "forward" if is_peer else _name(request, leg.role),
            leg_id,
            self._own_id,
            leg.started_ns,
            max(self._ended_ns(leg), leg.started_ns),
            _said(attributes),
            Kind.CLIENT,
            is_error=is_error,
        )

    def _inner(self, name: str, start_ns: int, end_ns: int, attributes: Attributes) -> Span:
        return Span(name, fresh_span_id(), self._own_id, start_ns, end_ns, attributes)

    def _number(self, leg: LegState) -> Attributes:
        named = decision_id(self._gateway_id, self._record.request_id, leg.attempt, leg.number)
        return {"nightside.decision.id": named, "nightside.attempt": leg.attempt, "nightside.leg": leg.number}

    def _ended_ns(self, leg: LegState) -> int:
        return self._request.ended_ns if leg.ended_ns is None else leg.ended_ns


def _asked(request: FinishedRequest) -> Mapping[str, Attribute | None]:
    return {
        "gen_ai.operation.name": _OPERATIONS.get(request.trace.path, _STORED),
        "gen_ai.request.model": request.model or None,
        "gen_ai.request.stream": True if request.profile.stream else None,
        "gen_ai.request.max_tokens": request.profile.output_tokens_max,
    }


def _name(request: FinishedRequest, role: LegRole = LegRole.WHOLE) -> str:
    operation = _OPERATIONS.get(request.trace.path, _STORED) if role is LegRole.WHOLE else str(role)
    return f"{operation} {request.model}".rstrip()


def _about(leg: LegState) -> Mapping[str, Attribute | None]:
    place = leg.place
    return {
        "nightside.target.kind": str(leg.target.kind),
        "nightside.target.id": leg.target.id,
        "nightside.target.region": place.region,
        "nightside.target.jurisdiction": place.jurisdiction,
    }


def _candidate(each: Candidate) -> Attributes:
    told: Attributes = {
        "nightside.target.kind": str(each.target.kind),
        "nightside.target.id": each.target.id,
        "nightside.standing": str(each.standing),
        "nightside.prefix.matched_blocks": each.matched_blocks,
        "nightside.load": each.load,
    }
    if each.costs is not None:
        told["nightside.cost_ms"] = each.costs.total_ns / MILLISECOND_NS
    return told


def _seconds(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else duration_ns / SECOND_NS


def _said(attributes: Mapping[str, Attribute | None]) -> Attributes:
    """Attributes without those that are unknown."""
    return {name: value for name, value in attributes.items() if value is not None}
