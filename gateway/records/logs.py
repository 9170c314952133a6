"""Writes one line per finished request with the decision behind it. Never any content."""

from __future__ import annotations

from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from gateway.core.effects import Effect, EndRequest, StartLeg
from gateway.core.events import Event, FirstToken, PolicyApplied
from gateway.core.residency import LoggingRule
from gateway.core.vocabulary import Decision, GatewayId, Outcome, RequestId, RequestProfile
from gateway.records.decisions import decision_id
from gateway.request.legs import RequestSummary

FOLLOWED_MAX = 100_000
"""Requests whose decision is remembered for their line; beyond that the oldest line goes without."""

_MILLISECOND_NS = 1_000_000
_WARNED_OUTCOMES = frozenset({Outcome.FAILED_BEFORE_FIRST_BYTE, Outcome.FAILED_MIDSTREAM, Outcome.EXPIRED_RUNNING})


@dataclass(slots=True)
class _Followed:
    arrived_ns: int
    decision_id: str
    decision: Decision
    first_token_ns: int | None = None


class RequestLog:
    """Remembers the last decision for each running request, and writes the line when its owner is done."""

    def __init__(self, log: FilteringBoundLogger, gateway_id: GatewayId) -> None:
        self._log = log
        self._gateway_id = gateway_id
        self._rule = LoggingRule(tenant=False)
        self._followed: dict[RequestId, _Followed] = {}

    def on_step(self, now_ns: int, event: Event, effects: list[Effect]) -> None:
        """An observer of the driver. Before any policy is applied, the line names no tenant."""
        if isinstance(event, PolicyApplied):
            self._rule = event.policy.logging
        elif isinstance(event, FirstToken):
            followed = self._followed.get(event.request_id)
            if followed is not None:
                followed.first_token_ns = now_ns
        for effect in effects:
            if isinstance(effect, StartLeg):
                self._follow(effect, now_ns)

    def on_finished(self, profile: RequestProfile, end: EndRequest, summary: RequestSummary) -> None:
        """Called once by each request's owner."""
        followed = self._followed.pop(profile.request_id, None)
        write = self._log.warning if end.outcome in _WARNED_OUTCOMES else self._log.info
        write("request", **request_line(profile, end, summary, self._rule), **_decision_line(followed))

    def _follow(self, order: StartLeg, now_ns: int) -> None:
        arrived_ns = now_ns - order.decision.waited_ns
        name = decision_id(self._gateway_id, order.request_id, order.attempt)
        self._followed[order.request_id] = _Followed(arrived_ns, name, order.decision)
        if len(self._followed) > FOLLOWED_MAX:
            del self._followed[next(iter(self._followed))]


def request_line(
    profile: RequestProfile, end: EndRequest, summary: RequestSummary, rule: LoggingRule
) -> dict[str, object]:
    """What may be known of a request, and what became of it; absent things are left out."""
    fields: dict[str, object | None] = {
        "request_id": profile.request_id,
        "model": profile.model,
        "tenant": profile.tenant if rule.tenant else None,
        "session_key": profile.session_key if rule.session_key else None,
        "outcome": str(end.outcome),
        "detail": end.detail or None,
        "region": summary.ran_at.place.region if summary.ran_at else None,
        "replica": summary.ran_at.replica_id if summary.ran_at else None,
        "attempts": summary.attempts,
        "duration_ms": summary.duration_ns // _MILLISECOND_NS,
        "prompt_bytes": profile.prompt_bytes,
        "prompt_tokens": summary.prompt_tokens,
        "cached_tokens": summary.cached_tokens,
        "output_tokens": summary.output_tokens,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _decision_line(followed: _Followed | None) -> dict[str, object]:
    if followed is None:
        return {}
    decision = followed.decision
    line: dict[str, object] = {
        "decision": followed.decision_id,
        "placed_by": str(decision.reason),
        "candidates": decision.candidates,
        "matched_share": round(decision.matched_blocks / max(decision.prompt_blocks, 1), 3),
        "waited_ms": decision.waited_ns // _MILLISECOND_NS,
    }
    if followed.first_token_ns is not None:
        line["first_token_ms"] = (followed.first_token_ns - followed.arrived_ns) // _MILLISECOND_NS
    return line
