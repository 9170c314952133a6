"""Words on KV events in explanations: which replicas' engines had said that they hold a part of the prompt."""

from __future__ import annotations

from gateway.core.placement.engine_word import ENGINE_BLOCKS
from gateway.features.words import Words, figure_of
from gateway.records.decisions import ExplainedPlacement


class KvEventWords(Words):
    """Says for each replica what its engine told; of the others the match is this gateway's estimate."""

    def caption(self, placement: ExplainedPlacement, /) -> str:
        told = {each.id: figure_of(each, ENGINE_BLOCKS) for each in placement.considered}
        said = [f"{blocks:.0f} blocks at {replica}" for replica, blocks in told.items() if blocks]
        return f", by the engines' own word: {', '.join(said)}" if said else ""
