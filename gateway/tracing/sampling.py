"""Sampling of traces: head sampling by chance, decided when a request arrives and passed to all that join its trace,
and tail sampling by how the request ended. The module sends nothing, and imports nothing of OpenTelemetry.
"""

from __future__ import annotations

from enum import StrEnum

from gateway.config.tracing import TailConfig, TracingConfig
from gateway.core.kernel.effects import EndRequest
from gateway.core.kernel.requests import RequestRecord
from gateway.core.vocabulary import LegResult, Outcome, TargetKind
from gateway.request.legs import OutboundRequest, RequestSummary
from gateway.request.trace_context import RequestTrace, SpanName, fresh_span_id, fresh_trace_id, named_in
from mesh.values import SECOND_NS

FAILURES = frozenset(
    {
        Outcome.REJECTED_QUEUE_FULL,
        Outcome.REJECTED_DRAINING,
        Outcome.EXPIRED_IN_QUEUE,
        Outcome.EXPIRED_RUNNING,
        Outcome.FAILED_BEFORE_FIRST_BYTE,
        Outcome.FAILED_MIDSTREAM,
        Outcome.FAILED_INTERNALLY,
    }
)
"""Outcomes that count as failed: undesired, and not the client's fault."""
_FAILED_LEGS = frozenset({LegResult.FAILED, LegResult.INTERNAL})
_SHARE_BITS = 64


class KeptBecause(StrEnum):
    """Reason why a request's spans are sent: the first that holds."""

    HEAD = "head"
    """Decided on arrival: by chance, or by the caller."""
    FAILED = "failed"
    RESUMED = "resumed"
    SLOW = "slow"
    FORWARDED = "forwarded"


class HeadSampler:
    """Begins the trace of each request, or joins it to the trace that its caller names."""

    def __init__(self, config: TracingConfig) -> None:
        self._trust_client = config.trust_client
        self._below = round(config.sampled_share * 2**_SHARE_BITS)

    def begin(self, outbound: OutboundRequest) -> RequestTrace:
        """Begin a request's trace. A gateway that forwards is trusted with the trace that it names, as with everything
        else; a client only where the region file says so."""
        named = named_in(outbound.headers)
        if named is None:
            return RequestTrace(self._root(), None, None, outbound.path)
        if not outbound.is_traced and not self._trust_client:
            return RequestTrace(self._root(), None, named, outbound.path)
        own = SpanName(named.trace_id, fresh_span_id(), named.is_sampled, named.is_random, named.tracestate)
        return RequestTrace(own, named, None, outbound.path)

    def _root(self) -> SpanName:
        """New trace, sampled as OpenTelemetry's `TraceIdRatioBased` does it, so that equal shares elsewhere agree."""
        trace_id = fresh_trace_id()
        is_sampled = int(trace_id[-16:], 16) < self._below
        return SpanName(trace_id, fresh_span_id(), is_sampled, is_random=True)


class TailSampler:
    """Samples finished requests that head sampling left out."""

    def __init__(self, config: TailConfig) -> None:
        self._config = config
        self._second = 0
        self._kept = 0
        """Requests kept in that second."""

    def why_kept(
        self, end: EndRequest, summary: RequestSummary, record: RequestRecord | None, now_ns: int
    ) -> KeptBecause | None:
        why = self._why(end, summary, record)
        return why if why is not None and self._has_room(now_ns) else None

    def _why(self, end: EndRequest, summary: RequestSummary, record: RequestRecord | None) -> KeptBecause | None:
        config = self._config
        slow_ns, took_ns = config.slow_first_token_ns, _until_first_token(summary)
        legs = [] if record is None else record.legs
        if config.failed and (end.outcome in FAILURES or any(leg.result in _FAILED_LEGS for leg in legs)):
            return KeptBecause.FAILED
        if config.resumed and summary.segments:
            return KeptBecause.RESUMED
        if slow_ns is not None and took_ns > slow_ns:
            return KeptBecause.SLOW
        is_arrival = record is not None and record.origin is not None
        if config.forwarded and (is_arrival or any(leg.target.kind is TargetKind.PEER for leg in legs)):
            return KeptBecause.FORWARDED
        return None

    def _has_room(self, now_ns: int) -> bool:
        second = now_ns // SECOND_NS
        if second != self._second:
            self._second, self._kept = second, 0
        self._kept += 1
        return self._kept <= self._config.kept_per_s


def _until_first_token(summary: RequestSummary) -> int:
    """Nanoseconds until the first token; of a request that got none, its whole duration."""
    return summary.duration_ns if summary.first_token_ns is None else summary.first_token_ns
