"""Record of the tokens counted in each KV block, so that a sum over blocks is reported only where it is exact.

A block's row lives as long as the block's content: it begins anew with the block's first token, whatever the block held
before, and is right only as long as tokens follow each other without a gap or a repetition. The ledger never guesses:
content that was loaded from elsewhere, or written twice, is not counted, and a prompt that builds on it has no counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_BROKEN = -1
"""Mark of a block whose row cannot be trusted until the block begins anew."""


@dataclass(frozen=True, slots=True)
class StepTokens:
    """Tokens that one step writes: `tokens` are their indices in the step, `blocks` the block of each, and `fresh` the
    blocks whose rows begin anew, before anything is added to them."""

    tokens: NDArray[np.int64]
    blocks: NDArray[np.int64]
    fresh: NDArray[np.int64]


class Ledger:
    def __init__(self, blocks: int, block_tokens: int) -> None:
        assert blocks > 0
        assert block_tokens > 0
        self.block_tokens = block_tokens
        self._written = np.zeros(blocks, dtype=np.int32)

    def write(self, slots: NDArray[np.int64]) -> StepTokens:
        """Record a step. `slots`: for each token, where its K and V go, block times tokens a block plus offset; below 0
        for padding. Tokens of one block stand beside each other, in their order."""
        tokens = np.flatnonzero(slots >= 0)
        written = slots[tokens]
        blocks, offsets = np.divmod(written, self.block_tokens)
        is_first = np.ones(len(tokens), dtype=bool)
        is_first[1:] = blocks[1:] != blocks[:-1]
        starts = np.flatnonzero(is_first)
        runs = self._follow(blocks[starts], offsets[starts], _gapless(written, is_first, starts), len(tokens), starts)
        return StepTokens(tokens, blocks, runs)

    def _follow(
        self,
        blocks: NDArray[np.int64],
        offsets: NDArray[np.int64],
        is_gapless: NDArray[np.bool_],
        tokens: int,
        starts: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Record each block's run of tokens; returns the blocks that begin anew."""
        lengths = np.diff(starts, append=tokens)
        fresh: NDArray[np.int64] = blocks[offsets == 0]
        self._written[fresh] = 0
        continues = (self._written[blocks] == offsets) & is_gapless
        self._written[blocks] = np.where(continues, offsets + lengths, _BROKEN)
        twice, times = np.unique(blocks, return_counts=True)
        self._written[twice[times > 1]] = _BROKEN
        return fresh

    def copy(self, source: int, target: int) -> None:
        self._written[target] = self._written[source]

    def covers(self, blocks: Sequence[int] | NDArray[np.int64], tokens: int) -> bool:
        """Tell whether these blocks, in their order, are counted for exactly this many tokens."""
        full, rest = divmod(tokens, self.block_tokens)
        if tokens <= 0 or len(blocks) != full + (rest > 0):
            return False
        written = self._written[np.asarray(blocks, dtype=np.int64)]
        return bool((written[:full] == self.block_tokens).all() and (not rest or written[full] == rest))


def _gapless(written: NDArray[np.int64], is_first: NDArray[np.bool_], starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell for each run whether each of its tokens follows the one before."""
    if len(written) == 0:
        return np.ones(0, dtype=bool)
    follows = np.ones(len(written), dtype=bool)
    follows[1:] = (written[1:] == written[:-1] + 1) | is_first[1:]
    return np.logical_and.reduceat(follows, starts)
