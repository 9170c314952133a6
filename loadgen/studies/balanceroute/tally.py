"""Counts a decode group's steps: the imbalance of their loads, and tokens over time.

The count is exact for every step, though stretches of steps arrive together.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loadgen.engine.decode_group import Steps

Loads = npt.NDArray[np.int64]


class Tally:
    """Counters of the steps since `begin`."""

    def __init__(self, keep_steps: int = 0) -> None:
        """Start idle. `keep_steps` is the number of steps after `begin` for which the load of each worker is kept."""
        self.is_counting = self.is_weighing = False
        self.steps = self.weighed = self.tokens = 0
        """Counted steps; those of them whose loads are weighed; tokens of all counted steps."""
        self.time_ns = self.weighed_ns = 0
        self._gap = self._deficit = self._largest = self._mean = 0.0
        self._keep_steps = keep_steps
        self._kept: list[Loads] = []
        self._kept_steps = 0

    def begin(self) -> None:
        self.is_counting = self.is_weighing = True

    def end_weighing(self) -> None:
        """Stop weighing loads, while tokens and time are still counted."""
        self.is_weighing = False

    def __call__(self, told: Steps) -> None:
        if not self.is_counting:
            return
        self.steps += told.steps
        self.tokens += sum(told.running) * told.steps
        self.time_ns += told.end_ns - told.begin_ns
        if self.is_weighing:
            self._weigh(told)

    def _weigh(self, told: Steps) -> None:
        running = np.array(told.running, np.int64)
        first = np.array(told.kv_tokens, np.int64)
        loads = first[:, None] + running[:, None] * np.arange(told.steps)
        largest = loads.max(axis=0)
        total = float(loads.sum())
        peaks = float(largest.sum())
        self._gap += peaks - float(loads.min(axis=0).sum())
        self._deficit += len(first) * peaks - total
        self._largest += peaks
        self._mean += total / len(first)
        self.weighed += told.steps
        self.weighed_ns += told.end_ns - told.begin_ns
        if self._kept_steps < self._keep_steps:
            self._kept.append(loads[:, : self._keep_steps - self._kept_steps])
            self._kept_steps += self._kept[-1].shape[1]

    # Means over the steps that were weighed

    @property
    def gap(self) -> float:
        """Mean of the largest load less the smallest, in tokens."""
        return self._gap / max(1, self.weighed)

    @property
    def deficit(self) -> float:
        """Mean of the sum over workers of the largest load less theirs."""
        return self._deficit / max(1, self.weighed)

    @property
    def largest(self) -> float:
        return self._largest / max(1, self.weighed)

    @property
    def mean(self) -> float:
        return self._mean / max(1, self.weighed)

    def kept(self, points: int) -> list[list[int]]:
        """Load of each worker at `points` of the kept steps, equally spaced."""
        if not self._kept:
            return []
        loads = np.concatenate(self._kept, axis=1)
        chosen = np.linspace(0, loads.shape[1] - 1, min(points, loads.shape[1])).astype(np.int64)
        picked: list[list[int]] = loads[:, chosen].tolist()
        return picked
