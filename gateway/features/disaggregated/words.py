"""Words on decode workers in explanations."""

from __future__ import annotations

from typing import ClassVar

from rich.table import Table

from gateway.core.vocabulary import PlacementReason
from gateway.features.words import Words, add_row, table_of
from gateway.records.decisions import ExplainedPlacement


def _chose(placement: ExplainedPlacement) -> str:
    return f"the decode tier chose {placement.target}{_as_loaded(placement)}"


class DecodeWords(Words):
    """Reason of the decode tier, and the loads of the workers that it considered."""

    reasons: ClassVar = {PlacementReason.DECODE_POLICY: _chose}

    def own_table(self, placement: ExplainedPlacement, /) -> Table | None:
        if placement.reason != PlacementReason.DECODE_POLICY:
            return None
        table = table_of(("Decode worker", "Group", "State"), ("Free slots", "Tokens", "Below the fullest"))
        for index, candidate in enumerate(placement.considered):
            load = candidate.decode
            numbers = (load.free_slots, load.load_tokens, load.margin_tokens) if load else ("", "", "")
            words = (candidate.id, load.group if load else "", candidate.standing)
            add_row(table, *words, *map(str, numbers), is_taken=index == 0)
        return table


def _as_loaded(placement: ExplainedPlacement) -> str:
    decode = placement.considered[0].decode if placement.considered else None
    if not decode:
        return ""
    others = f", {decode.margin_tokens} below the fullest of group {decode.group}" if decode.margin_tokens else ""
    return f", which had {decode.free_slots} free slots and {decode.load_tokens} tokens in its cache{others}"
