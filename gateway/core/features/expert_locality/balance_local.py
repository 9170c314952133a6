"""BR-H within locality bands: each worker is filled as by BalanceRoute, but only with requests that are near enough to
it (beyond the papers; docs/results/eldr.md has the gain).

The band of a request is computed over the workers that could take it at the moment: it does not wait for a full worker
while another is idle. A request that has waited for half of its time goes to any worker.
"""

from __future__ import annotations

import random

from gateway.core.features.disaggregated.balance_route import BalanceRoute
from gateway.core.features.disaggregated.board import Board
from gateway.core.features.disaggregated.books import Entry, Worker
from gateway.core.features.disaggregated.config import DecodeConfig
from gateway.core.features.disaggregated.policy import Round
from gateway.core.features.disaggregated.predictor import Predictor
from gateway.core.features.disaggregated.seats import Seats


class BalanceLocal(BalanceRoute):
    """BR-H within locality bands. Each computation of the bands costs waiting requests times workers; the number of
    waiting requests is bounded by the free slots plus a margin."""

    def __init__(
        self,
        config: DecodeConfig,
        rng: random.Random,
        predictor: Predictor | None = None,
        seats: Seats | None = None,
    ) -> None:
        super().__init__(config, rng, predictor, seats)
        self._band = config.band
        self._near: dict[int, list[Entry]] = {}
        """Waiting entries near each worker, by worker number, in order of arrival; for one pass of a round."""

    def admit(self, round_: Round) -> None:
        board = self.prepare(round_)
        left = -1
        while not round_.is_over and round_.left != left:
            left = round_.left
            board.reopen()
            self.admit_aged(round_, board)
            self._draw_bands(round_, board)
            self.admit_greedily(round_, board)
            self.admit_refined(round_, board)
        self._near = {}

    def _draw_bands(self, round_: Round, board: Board) -> None:
        free = [worker for worker, slots in zip(board.workers, board.free, strict=True) if slots > 0]
        near: dict[int, list[Entry]] = {worker.number: [] for worker in free}
        for entry in round_.pool.in_order():
            takers = [worker for worker in free if worker.room_left >= entry.weight]
            band = self.seats.band(entry.facts, takers, self._band) if takers else []
            for worker in takers if band is None else band:
                near[worker.number].append(entry)
        self._near = near

    def _fitting(self, round_: Round, worker: Worker) -> list[Entry]:
        """Waiting entries that are near the worker and fit it, in order of arrival."""
        room, pool = worker.room_left, round_.pool
        return [entry for entry in self._near.get(worker.number, []) if entry.weight <= room and entry.key in pool]

    def window(self, round_: Round, board: Board, place: int) -> list[Entry]:
        fitting = self._fitting(round_, board.workers[place])
        fitting.sort(key=_rank, reverse=True)
        return fitting[: self.balance.window]

    def best_single(self, round_: Round, board: Board, place: int) -> Entry | None:
        fitting = self._fitting(round_, board.workers[place])
        if not fitting or board.is_alone(place):
            return fitting[0] if fitting else None
        fitting.sort(key=_rank)
        best = board.score(place).best_of([entry.weight for entry in fitting])
        return fitting[best]


def _rank(entry: Entry) -> int:
    return entry.rank
