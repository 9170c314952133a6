"""Words on resumed answers in explanations."""

from __future__ import annotations

from gateway.features.words import Words
from gateway.records.decisions import ExplainedPlacement


class ResumeWords(Words):
    """Names a decision that continues a broken answer."""

    def caption(self, placement: ExplainedPlacement, /) -> str:
        return f", to go on with the answer (resume {placement.resume})" if placement.resume else ""
