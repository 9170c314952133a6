"""Words on cache digests in explanations: which peers had told that they hold a part of the prompt."""

from __future__ import annotations

from gateway.core.placement.placer import TOLD_BLOCKS
from gateway.features.words import Words, figure_of
from gateway.records.decisions import ExplainedPlacement


class CacheDigestWords(Words):
    """Says for each peer whose match is its own word, and not forwards of this gateway."""

    def caption(self, placement: ExplainedPlacement, /) -> str:
        told = {each.id: figure_of(each, TOLD_BLOCKS) for each in placement.considered}
        said = [f"{blocks:.0f} blocks at {peer}" for peer, blocks in told.items() if blocks]
        return f", by the peers' cache digests: {', '.join(said)}" if said else ""
