"""BR-H within locality bands: each worker is filled as BalanceRoute fills it, out of those requests alone that it is
near enough to (beyond the papers; docs/results/eldr.md has what it is worth).

The band of a request is taken over the workers that could take it now: nobody waits for one that is full while another
one stands idle. Who has waited for half of its time goes anywhere.
"""

from __future__ import annotations

import random

from gateway.core.decode.balance_route import BalanceRoute
from gateway.core.decode.board import Board
from gateway.core.decode.books import Entry, Worker
from gateway.core.decode.config import DecodeConfig
from gateway.core.decode.locality.seats import Seats
from gateway.core.decode.policy import Round
from gateway.core.decode.predictor import Predictor


class BalanceLocal(BalanceRoute):
    """Those who wait times workers, for each band that is drawn; fewer wait than there are free slots and a margin."""

    def __init__(
        self,
        config: DecodeConfig,
        rng: random.Random,
        predictor: Predictor | None = None,
        seats: Seats | None = None,
    ) -> None:
        super().__init__(config, rng, predictor, seats)
        self._band = config.locality.band
        self._near: dict[int, list[Entry]] = {}
        """By the number of each worker: who waits and is near to it, as they came. Of one pass of a round."""

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
        """Who waits, is near and fits, as they came."""
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
