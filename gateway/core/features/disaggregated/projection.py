"""Project the KV tokens of each worker over the next steps, from a predictor's estimates (BalanceRoute §4, C.2).

The projection asks the predictor when a prediction is due, counts down in between, and makes no placement decisions.
Invalid predictions are never used: then there is no projection.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gateway.core.features.disaggregated.books import Entry, Worker
from gateway.core.features.disaggregated.config import BalanceConfig
from gateway.core.features.disaggregated.predictor import Facts, Numbers, Predictor

_ROWS = 64
_NEVER = -1


class Projection:
    """One row for each entry at a worker; bounded by the number of requests in flight."""

    def __init__(self, config: BalanceConfig, predictor: Predictor) -> None:
        self._config = config
        self._predictor = predictor
        self._facts: list[Facts | None] = []
        self._free: list[int] = []
        self._prompts = np.zeros(0, np.int64)
        self._ages = np.zeros(0, np.int64)
        """Tokens generated."""
        self._asked_at = np.zeros(0, np.int64)
        """Age at which the prediction was made."""
        self._ends = np.zeros(0, np.float64)
        """Predicted number of further tokens from that age."""
        self._homes = np.zeros(0, np.int64)
        """Worker number; -1: the row is free."""

    def _grow(self, rows: int) -> None:
        first = len(self._facts)
        self._facts += [None] * rows
        self._free += range(first + rows - 1, first - 1, -1)
        more = np.zeros(rows, np.int64)
        self._prompts = np.concatenate((self._prompts, more))
        self._ages = np.concatenate((self._ages, more))
        self._asked_at = np.concatenate((self._asked_at, more))
        self._ends = np.concatenate((self._ends, more.astype(np.float64)))
        self._homes = np.concatenate((self._homes, more - 1))

    # Notifications

    def sent(self, entry: Entry, worker: Worker) -> None:
        if not self._free:
            self._grow(max(_ROWS, len(self._facts)))
        row = self._free.pop()
        entry.row = row
        self._facts[row] = entry.facts
        self._prompts[row] = entry.facts.prompt_tokens
        self._ages[row] = entry.generated
        self._asked_at[row] = _NEVER
        self._homes[row] = worker.number

    def progressed(self, entry: Entry) -> None:
        self._ages[entry.row] = entry.generated

    def over(self, entry: Entry) -> None:
        row = entry.row
        self._homes[row] = -1
        self._facts[row] = None
        self._free.append(row)
        entry.row = -1

    # Queries

    def loads(self, workers: list[Worker], now_ns: int) -> Numbers | None:
        """Projected loads ŵ: for each worker, its KV tokens 0 … H steps from now. Inherited tokens stay constant. None:
        the predictor cannot tell."""
        if not self._predictor.is_ready(now_ns):
            return None
        rows = np.flatnonzero(self._homes >= 0)
        if not self._refresh(rows):
            return None
        horizon = self._config.horizon_steps
        steps = np.arange(horizon + 1, dtype=np.float64)
        left = self._left(rows)
        leaving = left < horizon
        gone = rows[leaving]
        # each entry is gone from the first step without it
        cells = self._columns(workers)[self._homes[gone]] * (horizon + 1) + np.ceil(left[leaving]).astype(np.int64)
        shape = len(workers), horizon + 1
        size = shape[0] * shape[1]
        weights = (self._prompts[gone] + self._ages[gone]).astype(np.float64)
        gone_tokens = np.bincount(cells, weights, size).reshape(shape).cumsum(axis=1)
        gone_count = np.bincount(cells, minlength=size).reshape(shape).cumsum(axis=1)
        loads = np.array([worker.total_load for worker in workers], np.float64)
        count = np.array([worker.in_flight for worker in workers], np.float64)
        projected: Numbers = loads[:, None] - gone_tokens + steps * (count[:, None] - gone_count)
        return projected

    def _as_hinted(
        self, ages: npt.NDArray[np.int64], facts: list[Facts], share: Numbers, mean: Numbers
    ) -> tuple[Numbers, Numbers]:
        """Replace the predictor's estimates by clients' own, where there are any that the answer has not exceeded."""
        left = np.array([each.output_tokens for each in facts], np.int64) - ages
        horizon = self._config.horizon_steps
        share = np.where(left > 0, left <= horizon, share)
        return share, np.where(left > 0, np.minimum(left, horizon), mean)

    def _columns(self, workers: list[Worker]) -> npt.NDArray[np.int64]:
        """Column of each worker number: its index among `workers`."""
        columns = np.zeros(1 + max([worker.number for worker in workers], default=0), np.int64)
        columns[[worker.number for worker in workers]] = np.arange(len(workers))
        return columns

    def _left(self, rows: npt.NDArray[np.int64]) -> Numbers:
        """Remaining tokens ĉ of each row, at least 1; H: it stays through the horizon."""
        horizon = float(self._config.horizon_steps)
        asked = self._ends[rows]
        left: Numbers = np.maximum(1.0, asked - (self._ages[rows] - self._asked_at[rows]))
        if not self._config.decrements_stayers:
            left[asked >= horizon] = horizon
        return left

    def _refresh(self, rows: npt.NDArray[np.int64]) -> bool:
        """Renew, in one query, the predictions that are too old or have run out. Return whether all answers were valid;
        invalid ones are asked for again at the next call."""
        since = self._ages[rows] - self._asked_at[rows]
        never = self._asked_at[rows] == _NEVER
        ran_out = self._ends[rows] - since < 1.0
        due = rows[never | (since >= self._config.refresh_tokens) | ran_out]
        if not len(due):
            return True
        horizon = self._config.horizon_steps
        facts = [each for each in [self._facts[row] for row in due.tolist()] if each is not None]
        share, mean = self._predictor.estimate(self._ages[due], facts, horizon)
        if share.shape != due.shape or mean.shape != due.shape:
            return False
        if any(each.output_tokens for each in facts):
            share, mean = self._as_hinted(self._ages[due], facts, share, mean)
        # NaN compares as false; with probability 0, the mean is not used
        sound = (share >= 0.0) & (share <= 1.0) & ((share == 0.0) | np.isfinite(mean))
        share, mean = np.where(sound, share, 0.0), np.where(sound & (share > 0.0), mean, 0.0)
        ends = np.clip(share * mean + (1.0 - share) * horizon, 1.0, horizon)
        ends[share < self._config.confidence_min] = horizon
        self._ends[due] = ends
        self._asked_at[due] = np.where(sound, self._ages[due], _NEVER)
        return bool(sound.all())
