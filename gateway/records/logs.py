"""Sets up logging, and writes one line per finished request with the decision behind it. Never any content.

Loggers are handed down, not looked up, so that several gateways in one process each say who they are.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TextIO

import msgspec
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor

from gateway.config import LogFormat, LoggingConfig
from gateway.core.effects import EndRequest
from gateway.core.residency import LoggingRule
from gateway.core.vocabulary import GatewayId, Outcome, RequestProfile
from gateway.ground.clock import Clock
from gateway.records.decisions import decision_id
from gateway.records.ledger import Ledger, RequestRecord
from gateway.request.legs import RequestSummary

_MILLISECOND_NS = 1_000_000
_WARNED_OUTCOMES = frozenset({Outcome.FAILED_BEFORE_FIRST_BYTE, Outcome.FAILED_MIDSTREAM, Outcome.EXPIRED_RUNNING})


def make_logger(
    config: LoggingConfig, gateway_id: GatewayId, stream: TextIO | None = None, clock: Clock | None = None
) -> FilteringBoundLogger:
    """A logger of this gateway's own, to standard error and in real time unless told otherwise."""
    stream = stream or sys.stderr
    level = logging.getLevelNamesMapping()[config.level.upper()]
    logger: FilteringBoundLogger = structlog.wrap_logger(
        structlog.WriteLogger(stream),
        processors=[
            structlog.processors.add_log_level,
            _stamper(clock or Clock()),
            *_renderers(config.format, stream),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
    return logger.bind(gateway=gateway_id)


def _renderers(log_format: LogFormat, stream: TextIO) -> list[Processor]:
    is_console = log_format is LogFormat.CONSOLE or (log_format is LogFormat.AUTO and stream.isatty())
    if is_console:
        return [structlog.dev.ConsoleRenderer(colors=stream.isatty())]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_as_json)]


def _stamper(clock: Clock) -> Processor:
    def add_time(_logger: object, _method: str, fields: EventDict) -> EventDict:
        fields["timestamp"] = clock.wall_time()
        return fields

    return add_time


def _as_json(fields: dict[str, object], **_: object) -> str:
    """What has no shape in JSON is told in its own words."""
    try:
        return msgspec.json.encode(fields, enc_hook=repr).decode()
    except UnicodeEncodeError:  # half a character, which only escapes can tell
        return json.dumps(fields, default=repr)


class RequestLog:
    """Writes the line of each finished request."""

    def __init__(self, log: FilteringBoundLogger, gateway_id: GatewayId, ledger: Ledger) -> None:
        self._log = log
        self._gateway_id = gateway_id
        self._ledger = ledger

    def on_finished(
        self, profile: RequestProfile, end: EndRequest, summary: RequestSummary, record: RequestRecord | None
    ) -> None:
        """Before any policy is applied, the line names no tenant. Without a record it names no decision."""
        write = self._log.warning if end.outcome in _WARNED_OUTCOMES else self._log.info
        line = request_line(profile, end, summary, self._ledger.policy.logging)
        write("request", **line, **_decision_line(self._gateway_id, record))


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


def _decision_line(gateway_id: GatewayId, record: RequestRecord | None) -> dict[str, object]:
    """Of the last leg that was started."""
    if record is None or not record.legs:
        return {}
    leg = record.legs[-1]
    decision = leg.decision
    line: dict[str, object] = {
        "decision": decision_id(gateway_id, record.request_id, leg.attempt, leg.leg),
        "placed_by": str(decision.reason),
        "candidates": decision.candidates,
        "matched_share": round(decision.matched_blocks / max(decision.prompt_blocks, 1), 3),
        "waited_ms": decision.waited_ns // _MILLISECOND_NS,
    }
    if record.first_token_ns is not None:
        line["first_token_ms"] = (record.first_token_ns - record.arrived_ns) // _MILLISECOND_NS
    return line
