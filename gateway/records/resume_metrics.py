"""Metrics of answers that broke after their first token, and of the attempts to resume them. It follows no request
itself."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from gateway.core.effects import EndRequest, StartLeg
from gateway.core.events import LegEnded
from gateway.core.vocabulary import LegResult, RequestProfile
from gateway.ground.series import Tally
from gateway.records.ledger import LegRecord, RequestRecord
from gateway.request.legs import RequestSummary

_BREAKS = frozenset({LegResult.FAILED, LegResult.BUSY, LegResult.REFUSED})


class ResumeMetrics:
    """Counters of broken and resumed answers. The gateway's metrics pass on legs and ends with their records."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._broken = Tally(
            "nightside_answers_broken",
            "Answers that broke after their first token, by the target that broke them and how, and whether "
            "what is left of them could be asked for (`yes`), or could not.",
            ("target", "result", "continuable"),
        )
        self._resumes = Tally(
            "nightside_resumes", "Times that somebody was asked to go on with an answer that broke.", ("target",)
        )
        self._ended = Tally(
            "nightside_resumed_requests",
            "Requests whose answer went on at least once, by how they ended.",
            ("outcome",),
        )
        self._tokens = Tally(
            "nightside_resumed_tokens",
            "Tokens of answers that had been said when they broke, and were read again where they went on.",
            (),
        )
        self._dropped = Tally(
            "nightside_transcripts_dropped",
            "Answers that could not have gone on any more had they broken, as there was no room to keep them.",
            (),
        )
        for each in (self._broken, self._resumes, self._ended, self._tokens, self._dropped):
            registry.register(each)

    def leg_ended(self, leg: LegRecord, event: LegEnded) -> None:
        if leg.first_token_ns is not None and event.result in _BREAKS:
            self._broken.add(leg.target.kind, event.result, "no" if event.rest is None else "yes")

    def leg_started(self, record: RequestRecord, order: StartLeg) -> None:
        """Count a resume, unless the leg is another try with the same rest of the answer."""
        before = [leg for leg in record.legs if leg.attempt < order.attempt]
        if order.leg > 1 or not before or before[-1].resume == order.resume:
            return
        self._resumes.add(order.target.kind)
        said = (leg.ended.output_tokens for leg in reversed(before) if leg.ended is not None and leg.ended.rest)
        self._tokens.add(amount=next(said, None) or 0)

    def request_ended(self, record: RequestRecord, end: EndRequest) -> None:
        if record.legs and record.legs[-1].resume:
            self._ended.add(end.outcome)

    def on_finished(
        self, _profile: RequestProfile, _end: EndRequest, summary: RequestSummary, _record: RequestRecord | None
    ) -> None:
        """Count a dropped transcript; the ledger calls this for each finished request."""
        if summary.transcript_dropped:
            self._dropped.add()
