"""Rows of counts, one a KV block: how often each expert of each layer was picked by the tokens in it.

These rows are on the host; `device_rows.py` has the same on an accelerator. They know nothing of requests, and of
blocks only their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

BYTE_TOKENS = 255
"""Tokens of a block that a byte can count: a token picks an expert once at most."""


Total = Callable[[], NDArray[np.uint32]]
"""Counts, layers by experts. Call it once the step is over: an accelerator may still be adding."""


class Rows(Protocol):
    """Rows of counts. `picks`: the expert that the gate picked for each token, layer and rank, where the engine's own
    capture has them."""

    def clear(self, blocks: NDArray[np.int64]) -> None: ...

    def copy(self, source: int, target: int) -> None: ...

    def add(self, blocks: NDArray[np.int64], tokens: NDArray[np.int64], picks: Any) -> None: ...

    def total(self, blocks: Sequence[int] | NDArray[np.int64]) -> Total:
        """Return the sum over these blocks, as they are at the call."""

    def of_tokens(self, tokens: NDArray[np.int64], picks: Any) -> Total:
        """Return the counts of these tokens of a step alone."""


class HostRows:
    def __init__(self, blocks: int, block_tokens: int, layers: int, experts: int) -> None:
        self._layers, self._experts = layers, experts
        self._rows = np.zeros((blocks, layers * experts), dtype=np.uint8 if block_tokens <= BYTE_TOKENS else np.uint16)
        self._one = self._rows.dtype.type(1)
        self._columns = (np.arange(layers, dtype=np.int64) * experts)[None, :, None]

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes

    def clear(self, blocks: NDArray[np.int64]) -> None:
        self._rows[blocks] = 0

    def copy(self, source: int, target: int) -> None:
        self._rows[target] = self._rows[source]

    def add(self, blocks: NDArray[np.int64], tokens: NDArray[np.int64], picks: NDArray[Any]) -> None:
        cells = self._cells(tokens, picks) + (blocks * self._rows.shape[1])[:, None, None]
        np.add.at(self._rows.reshape(-1), cells.reshape(-1), self._one)

    def total(self, blocks: Sequence[int] | NDArray[np.int64]) -> Total:
        summed: NDArray[np.uint32] = self._rows[np.asarray(blocks, dtype=np.int64)].sum(axis=0, dtype=np.uint32)
        return lambda: summed.reshape(self._layers, self._experts)

    def of_tokens(self, tokens: NDArray[np.int64], picks: NDArray[Any]) -> Total:
        counted = np.bincount(self._cells(tokens, picks).ravel(), minlength=self._layers * self._experts)
        return lambda: counted.astype(np.uint32).reshape(self._layers, self._experts)

    def _cells(self, tokens: NDArray[np.int64], picks: NDArray[Any]) -> NDArray[np.int64]:
        cells: NDArray[np.int64] = picks[tokens].astype(np.int64) + self._columns
        return cells
