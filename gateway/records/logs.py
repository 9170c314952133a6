"""Request log: one line per finished request with the decision behind it, never any content."""

from __future__ import annotations

from structlog.typing import FilteringBoundLogger

from gateway.core.kernel.effects import EndRequest
from gateway.core.kernel.requests import RequestRecord
from gateway.core.kernel.residency import LoggingRule
from gateway.core.kernel.state import GatewayState
from gateway.core.vocabulary import NO_HINTS, GatewayId, ModelName, Outcome, RequestProfile
from gateway.records.decisions import decision_id
from gateway.records.finished import ServesModel, names_served_model
from gateway.request.legs import RequestSummary

_MILLISECOND_NS = 1_000_000
_WARNED_OUTCOMES = frozenset(
    {
        Outcome.FAILED_BEFORE_FIRST_BYTE,
        Outcome.FAILED_MIDSTREAM,
        Outcome.FAILED_INTERNALLY,
        Outcome.EXPIRED_RUNNING,
    }
)


class RequestLog:
    """Consumer of finished requests that writes the line of each."""

    def __init__(
        self, log: FilteringBoundLogger, gateway_id: GatewayId, core: GatewayState, serves: ServesModel
    ) -> None:
        self._serves = serves
        self._log = log
        self._gateway_id = gateway_id
        self._core = core

    def on_finished(
        self, profile: RequestProfile, end: EndRequest, summary: RequestSummary, record: RequestRecord | None
    ) -> None:
        """Write the line. It names no tenant before a policy is applied, and no decision where there is no record."""
        line = request_line(profile, end, summary, self._core.policy.logging)
        if not names_served_model(profile, record, self._serves):
            line = without_model(line, profile.model)
        line |= _decision_line(self._gateway_id, record)
        if end.outcome in _WARNED_OUTCOMES:
            self._log.warning("request", **line)
        else:
            self._log.info("request", **line)
        if record is not None and record.identity_mismatch:
            self._log.warning(
                "model_identity_mismatch",
                request_id=record.request_id,
                model=record.model,
                reason=record.identity_mismatch,
            )


def request_line(
    profile: RequestProfile, end: EndRequest, summary: RequestSummary, rule: LoggingRule
) -> dict[str, object]:
    """Fields of a request's log line that the policy allows; absent values are left out."""
    fields: dict[str, object | None] = {
        "request_id": profile.request_id,
        "model": profile.model,
        "asked_model": summary.asked_model or None,
        "tenant": profile.tenant if rule.tenant else None,
        "session_key": profile.session_key if rule.session_key else None,
        "outcome": str(end.outcome),
        "detail": end.detail or None,
        "region": summary.ran_at.place.region if summary.ran_at else None,
        "replica": summary.ran_at.replica_id if summary.ran_at else None,
        "attempts": summary.attempts,
        "duration_ms": summary.duration_ns // _MILLISECOND_NS,
        "hints": (profile.hints.words() or None) if profile.hints is not NO_HINTS else None,
        "prompt_bytes": profile.prompt_bytes,
        "prompt_tokens": summary.prompt_tokens,
        "cached_tokens": summary.cached_tokens,
        "output_tokens": summary.output_tokens,
        "content_events": summary.content_events or None,
        "resumes": summary.segments or None,
        **summary.notes,
        "trace_id": summary.trace.own.trace_id if summary.trace else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def without_model(line: dict[str, object], model: ModelName) -> dict[str, object]:
    """Line of a request whose model no gateway serves: fields that contain the name are left out; the outcome tells
    why."""
    named = f"`{model}`"
    return {name: value for name, value in line.items() if name != "model" and named not in str(value)}


def _decision_line(gateway_id: GatewayId, record: RequestRecord | None) -> dict[str, object]:
    """Fields of the decision for the last leg that was started."""
    if record is None or not record.legs:
        return {}
    leg = record.legs[-1]
    decision = leg.decision
    line: dict[str, object] = {
        "decision": decision_id(gateway_id, record.request_id, leg.attempt, leg.number),
        "placed_by": str(decision.reason),
        "candidates": decision.candidates,
        "matched_share": round(decision.matched_blocks / max(decision.prompt_blocks, 1), 3),
        "waited_ms": decision.waited_ns // _MILLISECOND_NS,
    }
    if record.first_token_ns is not None:
        line["first_token_ms"] = (record.first_token_ns - record.arrived_ns) // _MILLISECOND_NS
    return line
