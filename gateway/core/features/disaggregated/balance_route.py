"""BalanceRoute in both variants: BR-0, which considers the current step only, and BR-H, which looks ahead (§3.2, §4.2).

Both are one algorithm with two sets of parameters. Where the predictor of BR-H is missing, stale or gives invalid
numbers, the tick uses those of BR-0 and counts as degraded. A worker that is a group of its own shares no barrier: its
requests are sent in order of arrival.
"""

from __future__ import annotations

import random

from gateway.core.features.disaggregated.admissions import AdmissionReason
from gateway.core.features.disaggregated.board import Board
from gateway.core.features.disaggregated.books import BOUNDLESS, Entry, Worker
from gateway.core.features.disaggregated.config import LOOKS_AHEAD, BalanceConfig, DecodeConfig
from gateway.core.features.disaggregated.policy import DecodePolicy, Round
from gateway.core.features.disaggregated.predictor import Facts, Numbers, Predictor
from gateway.core.features.disaggregated.projection import Projection
from gateway.core.features.disaggregated.seats import Seats
from gateway.core.features.disaggregated.subset import best_subset


class BalanceRoute(DecodePolicy):
    def __init__(
        self,
        config: DecodeConfig,
        rng: random.Random,
        predictor: Predictor | None = None,
        seats: Seats | None = None,
    ) -> None:
        super().__init__(config, rng, predictor, seats)
        self.balance: BalanceConfig = config.balance
        self._looks_ahead = config.policy in LOOKS_AHEAD
        self._projection: Projection | None = None
        if self._looks_ahead and predictor is not None:
            self._projection = Projection(config.balance, predictor)

    def sent(self, entry: Entry, worker: Worker) -> None:
        if self._projection is not None:
            self._projection.sent(entry, worker)

    def progressed(self, entry: Entry) -> None:
        if self._projection is not None:
            self._projection.progressed(entry)

    def over(self, entry: Entry) -> None:
        if self._projection is not None:
            self._projection.over(entry)

    def choose(self, facts: Facts, workers: list[Worker], /) -> Worker:
        """Choose by the current step alone, with everything sent so far counted: the highest F, i.e. the tokens less
        the penalty beyond the margin; of equal ones, the widest margin (D.6)."""
        tokens = facts.prompt_tokens
        load_max = {worker.group.name: 0 for worker in workers}
        for worker in workers:
            name = worker.group.name
            load_max[name] = load_max[name] or worker.group.load_max()
        best, best_key = workers[0], (-float("inf"), 0, 0)
        for worker in workers:
            margin = load_max[worker.group.name] - worker.total_load
            key = (tokens - len(worker.group.workers) * max(0.0, tokens - margin), margin, worker.free)
            if key > best_key:
                best, best_key = worker, key
        return best

    def admit(self, round_: Round) -> None:
        board = self.prepare(round_)
        self.admit_aged(round_, board)
        self.admit_greedily(round_, board)
        self.admit_refined(round_, board)

    def prepare(self, round_: Round) -> Board:
        """Compute current and projected loads, once a round."""
        projected: Numbers | None = None
        if self._looks_ahead:
            workers = [worker for group in round_.groups for worker in group.workers]
            projected = None if self._projection is None else self._projection.loads(workers, round_.now_ns)
            self.is_degraded = projected is None
        if projected is None:
            return Board(round_.groups, None, [1.0], reward_weight=1.0, penalty_weight=None)
        balance = self.balance
        discounts = [balance.discount**step for step in range(balance.horizon_steps + 1)]
        return Board(
            round_.groups,
            projected,
            discounts,
            reward_weight=balance.reward_weight,
            penalty_weight=balance.penalty_weight,
        )

    def admit_aged(self, round_: Round, board: Board) -> None:
        """Admit entries that have waited for half of their time first, each where it does least harm. If one fits no
        worker, the worker with most room is kept free for it."""
        for entry in round_.pool.aged(round_.now_ns):
            if round_.is_over or not board.free_total:
                return
            place = board.best_taker(entry.weight)
            if place is None:
                board.keep_roomiest(entry.weight)
            else:
                self._send(round_, board, entry, place, AdmissionReason.AGED)

    def admit_greedily(self, round_: Round, board: Board) -> None:
        """Stage 1, while many slots are free: the worker with most free slots gets the single request with the highest
        score."""
        above = self.balance.greedy_above_slots
        threshold = len(board.workers) if above is None else above
        while not round_.is_over and board.free_total > threshold:
            self._send_single(round_, board, board.emptiest(), AdmissionReason.GREEDY)

    def admit_refined(self, round_: Round, board: Board) -> None:
        """Stage 2: the worker with most free slots and the widest margin gets the best subset of the heaviest requests;
        if every subset does harm, the single request of the whole pool that does least."""
        while not round_.is_over and board.free_total > 0:
            place = board.next_to_fill()
            chosen = [] if board.is_alone(place) else self._best_subset(round_, board, place)
            for entry in chosen:
                self._send(round_, board, entry, place, AdmissionReason.SUBSET)
            if not chosen:
                self._send_single(round_, board, place, AdmissionReason.SINGLE)

    def _best_subset(self, round_: Round, board: Board, place: int) -> list[Entry]:
        """Best subset for the worker; empty if none has a positive score."""
        room = board.room(place)
        window = self.window(round_, board, place)
        if not window:
            return []
        count_max = min(board.free[place], round_.left)
        heaviest = [entry.weight for entry in window[:count_max]]
        total = sum(heaviest)
        if total <= room and 0 < total <= board.margin(place):
            return window[:count_max]
        score = board.score(place)
        unit = self.balance.block_tokens
        weights = [max(1, -(-entry.weight // unit)) for entry in window]
        sum_max = None if room >= BOUNDLESS else room // unit
        chosen = [window[at] for at in best_subset(weights, count_max, score, unit, sum_max)]
        return chosen if chosen and score.at(sum([entry.weight for entry in chosen])) > 0 else []

    def window(self, round_: Round, board: Board, place: int) -> list[Entry]:
        """Heaviest C of the waiting entries that fit, heaviest first: the subset is chosen from these."""
        fitting = round_.pool.no_heavier_than(board.room(place))
        window = round_.pool.slice_by_weight(max(0, fitting - self.balance.window), fitting)
        window.reverse()
        return window

    def best_single(self, round_: Round, board: Board, place: int) -> Entry | None:
        """Best single entry of all that wait and fit; for a worker in a group of its own, the first to have arrived.
        O(log n), except for such a worker."""
        pool = round_.pool
        room = board.room(place)
        if board.is_alone(place):
            for entry in pool.in_order():
                if entry.weight <= room:
                    return entry
            return None
        fitting = pool.no_heavier_than(room)
        if not fitting:
            return None
        if pool.nth_lightest(fitting - 1).weight <= board.margin(place):
            return pool.nth_lightest(fitting - 1)
        score = board.score(place)
        above = min(fitting, pool.no_heavier_than(score.peak))
        if above == 0:
            return pool.nth_lightest(0)
        below = pool.nth_lightest(above - 1)
        if above == fitting:
            return below
        beyond = pool.nth_lightest(above)
        return beyond if score.at(beyond.weight) >= score.at(below.weight) else below

    def _send_single(self, round_: Round, board: Board, place: int, reason: AdmissionReason) -> None:
        entry = self.best_single(round_, board, place)
        if entry is None:
            board.shut(place)
        else:
            self._send(round_, board, entry, place, reason)

    def _send(self, round_: Round, board: Board, entry: Entry, place: int, reason: AdmissionReason) -> None:
        round_.send(entry, board.workers[place], reason)
        board.admitted(place, entry.weight)
