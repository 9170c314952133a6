"""Metrics of answers that broke after their first token, and of the attempts to resume them. It follows no request
itself."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from gateway.core.kernel.effects import EndRequest
from gateway.core.kernel.requests import LegState, RequestRecord
from gateway.core.vocabulary import LegResult, RequestProfile
from gateway.request.legs import RequestSummary
from mesh.series import CounterSeries

_BREAKS = frozenset({LegResult.FAILED, LegResult.BUSY, LegResult.REFUSED, LegResult.TAKEN_BACK})


class ResumeMetrics:
    """Counters of broken and resumed answers: a consumer of finished requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._broken = CounterSeries(
            "nightside_answers_broken",
            "Answers that broke after their first token, by target and result, and by whether they can be resumed.",
            ("target", "result", "continuable"),
        )
        self._resumes = CounterSeries(
            "nightside_resumes", "Attempts to resume a broken answer, by kind of target.", ("target",)
        )
        self._ended = CounterSeries(
            "nightside_resumed_requests",
            "Requests whose answer was resumed at least once, by outcome.",
            ("outcome",),
        )
        self._tokens = CounterSeries(
            "nightside_resumed_tokens",
            "Output tokens that were prefilled again to resume broken answers.",
            (),
        )
        self._dropped = CounterSeries(
            "nightside_transcripts_dropped",
            "Answers that cannot be resumed because the memory for transcripts is full.",
            (),
        )
        for each in (self._broken, self._resumes, self._ended, self._tokens, self._dropped):
            registry.register(each)

    def on_finished(
        self, _profile: RequestProfile, _end: EndRequest, summary: RequestSummary, record: RequestRecord | None
    ) -> None:
        """Count a finished request's broken and resumed legs, and a dropped transcript."""
        if summary.is_answer_dropped:
            self._dropped.add()
        if record is None:
            return
        for leg in record.legs:
            ended = leg.ended
            if leg.first_token_ns is not None and ended is not None and ended.result in _BREAKS:
                self._broken.add(leg.target.kind, ended.result, "no" if ended.remainder is None else "yes")
            if leg.segment and leg.number == 1:
                self._count_resume(record, leg)
        if record.legs and record.legs[-1].segment and record.end is not None and not record.is_control:
            self._ended.add(record.end.outcome)

    def _count_resume(self, record: RequestRecord, leg: LegState) -> None:
        """Count a resume, unless the leg is another try with the same rest of the answer."""
        before = [each for each in record.legs if each.attempt < leg.attempt]
        if not before or before[-1].segment == leg.segment:
            return
        self._resumes.add(leg.target.kind)
        said = (
            each.ended.output_tokens for each in reversed(before) if each.ended is not None and each.ended.remainder
        )
        self._tokens.add(amount=next(said, None) or 0)
