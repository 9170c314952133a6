"""Words on stored responses in explanations."""

from __future__ import annotations

from typing import ClassVar

from gateway.core.vocabulary import PlacementReason
from gateway.features.words import Words
from gateway.records.decisions import ExplainedPlacement


def _keeps(placement: ExplainedPlacement) -> str:
    return f"{placement.target} keeps the response that it refers to"


class StoredResponseWords(Words):
    """Reason of a request that refers to a stored response."""

    reasons: ClassVar = {PlacementReason.STORED_RESPONSE: _keeps}
