"""One row a KV block, as in `rows.py`, on the accelerator that runs the gates: a step's picks are added where they are,
and only the sum over a prompt's blocks, some kilobytes, ever leaves it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch  # type: ignore[import-not-found]
from numpy.typing import NDArray

from vllm_expert_counts.rows import BYTE_TOKENS, Total


class DeviceRows:
    def __init__(self, blocks: int, block_tokens: int, layers: int, experts: int, device: torch.device) -> None:
        self._layers, self._experts, self._device = layers, experts, device
        dtype = torch.uint8 if block_tokens <= BYTE_TOKENS else torch.int16
        self._rows = torch.zeros((blocks, layers * experts), dtype=dtype, device=device)
        self._columns = (torch.arange(layers, device=device) * experts)[None, :, None]

    @property
    def nbytes(self) -> int:
        return int(self._rows.nbytes)

    def clear(self, blocks: NDArray[np.int64]) -> None:
        self._rows[self._there(blocks)] = 0

    def copy(self, source: int, target: int) -> None:
        self._rows[target] = self._rows[source]

    def add(self, blocks: NDArray[np.int64], tokens: NDArray[np.int64], picks: torch.Tensor) -> None:
        cells = self._cells(tokens, picks) + (self._there(blocks) * self._rows.shape[1])[:, None, None]
        flat = cells.flatten()
        self._rows.view(-1).scatter_add_(0, flat, torch.ones_like(flat, dtype=self._rows.dtype))

    def total(self, blocks: Sequence[int] | NDArray[np.int64]) -> Total:
        rows = self._rows[self._there(np.asarray(blocks, dtype=np.int64))]
        return self._leaving(rows.sum(dim=0, dtype=torch.int32))

    def of_tokens(self, tokens: NDArray[np.int64], picks: torch.Tensor) -> Total:
        return self._leaving(torch.bincount(self._cells(tokens, picks).flatten(), minlength=self._rows.shape[1]))

    def _cells(self, tokens: NDArray[np.int64], picks: torch.Tensor) -> torch.Tensor:
        return picks[self._there(tokens)].long() + self._columns

    def _there(self, numbers: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self._device, non_blocking=True)

    def _leaving(self, summed: torch.Tensor) -> Total:
        """Copy sums to the host in the background, without a stop for the engine."""
        here = summed.to("cpu", non_blocking=True)
        arrived = None if self._device.type == "cpu" else torch.Event(self._device.type)
        if arrived is not None:
            arrived.record()

        def read() -> NDArray[np.uint32]:
            if arrived is not None:
                arrived.synchronize()
            read: NDArray[np.uint32] = here.numpy().astype(np.uint32).reshape(self._layers, self._experts)
            return read

        return read
