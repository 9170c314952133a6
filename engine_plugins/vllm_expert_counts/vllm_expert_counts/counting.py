"""Counting in one worker, step by step: rows of blocks, and sums over prompts that were prefilled to their end.

Pure: it is told of each step, in the order in which the steps run, and must miss none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_expert_counts.ledger import Ledger
from vllm_expert_counts.rows import Rows, Total


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One request's share of a step: `tokens` tokens from position `start` on. `blocks` are all blocks of the request,
    from its first token on; `prompt` is the number of tokens in its prompt; `is_wanted`: its counts are asked for."""

    request_id: str
    start: int
    tokens: int
    prompt: int
    blocks: Sequence[int]
    is_wanted: bool

    @property
    def end(self) -> int:
        return self.start + self.tokens


class Counter:
    def __init__(self, ledger: Ledger, rows: Rows) -> None:
        self._ledger = ledger
        self._rows = rows
        self._read: set[str] = set()
        """Live requests whose prompt has been prefilled to its end: one that is preempted prefills it again, with some
        of its answer behind it."""

    def copy(self, source: int, target: int) -> None:
        """Continue a block in another one, before the next step."""
        self._ledger.copy(source, target)
        self._rows.copy(source, target)

    def step(self, batch: Sequence[Scheduled], picks: Any) -> dict[str, Total]:
        """Count a step. `picks`: tokens by layers by rank, the batch's requests one after the other. Returns the counts
        of the prompts that this step has prefilled to their end, that are wanted, and that are known exactly."""
        written = self._ledger.write(slots_of(batch, self._ledger.block_tokens))
        self._rows.clear(written.fresh)
        self._rows.add(written.blocks, written.tokens, picks)
        done = [each for each in batch if each.end >= each.prompt and each.request_id not in self._read]
        self._read.update(each.request_id for each in done)
        return {each.request_id: counts for each in done if (counts := self._sum(each)) is not None}

    def end(self, request_ids: Iterable[str]) -> None:
        self._read.difference_update(request_ids)

    def _sum(self, request: Scheduled) -> Total | None:
        blocks = request.blocks[: -(-request.prompt // self._ledger.block_tokens)]
        if not request.is_wanted or not self._ledger.covers(blocks, request.prompt):
            return None
        return self._rows.total(blocks)


def slots_of(batch: Sequence[Scheduled], block_tokens: int) -> NDArray[np.int64]:
    """Return the slot of each token of the batch: block times tokens a block plus offset."""
    slots = [np.empty(0, dtype=np.int64)]
    for each in batch:
        positions = np.arange(each.start, each.end, dtype=np.int64)
        first = each.start // block_tokens
        blocks = np.asarray(each.blocks[first : -(-each.end // block_tokens)], dtype=np.int64)
        slots.append(blocks[positions // block_tokens - first] * block_tokens + positions % block_tokens)
    return np.concatenate(slots)
