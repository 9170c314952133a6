"""Decode policies for comparison with ELDR that no gateway has: one uses labels that a gateway does not know, the other
is the rejected form of BR-H with locality. They run in a production tier."""

from __future__ import annotations

import random

from gateway.core.features.disaggregated.admissions import AdmissionReason
from gateway.core.features.disaggregated.balance_route import BalanceRoute
from gateway.core.features.disaggregated.books import Entry, Worker
from gateway.core.features.disaggregated.config import DecodeConfig
from gateway.core.features.disaggregated.join_shortest_queue import JoinShortestQueue
from gateway.core.features.disaggregated.policy import DecodePolicy, Round
from gateway.core.features.disaggregated.predictor import Facts, Predictor
from gateway.core.features.disaggregated.seats import Seats
from gateway.core.nearness import UNIT


class ByDomain(DecodePolicy):
    """The paper's `Domain`: workers are divided among domains by the calibration's shares, and a request joins the
    shortest queue among its own domain's workers. It is given the domains."""

    def __init__(
        self,
        config: DecodeConfig,
        rng: random.Random,
        *,
        domain_of: dict[str, str],
        shares: dict[str, float],
        workers: int,
    ) -> None:
        super().__init__(config, rng)
        self._shortest = JoinShortestQueue(config, rng)
        self._domain_of = domain_of
        self._homes = shared_out(shares, workers)

    def choose(self, facts: Facts, workers: list[Worker], /) -> Worker:
        home = self._homes.get(self._domain_of[facts.request_id], range(0))
        own = [worker for worker in workers if worker.number in home]
        return self._shortest.choose(facts, own or workers)


def shared_out(shares: dict[str, float], workers: int) -> dict[str, range]:
    """Consecutive worker numbers for each domain, at least one while there are any, by the largest remainders."""
    total = sum(shares.values())
    wanted = {name: share / total * workers for name, share in shares.items()}
    counts = {name: max(1, int(each)) for name, each in wanted.items()}
    while sum(counts.values()) > workers:
        counts[max(counts, key=lambda name: counts[name] - wanted[name])] -= 1
    while sum(counts.values()) < workers:
        counts[max(counts, key=lambda name: wanted[name] - counts[name])] += 1
    homes, first = {}, 0
    for name, count in counts.items():
        homes[name] = range(first, first + count)
        first += count
    return homes


class ScoredLocal(DecodePolicy):
    """BR-H with locality in its score: requests are placed one by one, the heaviest first, each on the worker with the
    largest sum of F and λ times its tokens times its cosine. A `BalanceRoute` provides current and predicted loads."""

    def __init__(
        self,
        config: DecodeConfig,
        rng: random.Random,
        predictor: Predictor | None = None,
        seats: Seats | None = None,
        *,
        weight: float = 1.0,
    ) -> None:
        super().__init__(config, rng, predictor, seats)
        self._weight = weight
        self._route = BalanceRoute(config, rng, predictor, seats)

    def choose(self, facts: Facts, workers: list[Worker], /) -> Worker:
        return self._route.choose(facts, workers)

    def sent(self, entry: Entry, worker: Worker) -> None:
        self._route.sent(entry, worker)

    def progressed(self, entry: Entry) -> None:
        self._route.progressed(entry)

    def over(self, entry: Entry) -> None:
        self._route.over(entry)

    def admit(self, round_: Round) -> None:
        board = self._route.prepare(round_)
        self._route.admit_aged(round_, board)
        balance = self.config.balance
        reward = balance.reward_weight * sum(balance.discount**step for step in range(balance.horizon_steps + 1))
        waiting = sorted(round_.pool.in_order(), key=lambda entry: -entry.rank)
        for entry in waiting:
            if round_.is_over or not board.free_total:
                return
            best, best_worth = -1, -float("inf")
            for place, free in enumerate(board.free):
                worker = board.workers[place]
                if free > 0 and worker.room_left >= entry.weight:
                    cosine = self.seats.cosine(entry.facts, worker.group) / UNIT if entry.facts.cosines() else 0.0
                    worth = board.score(place).at(entry.weight) + self._weight * reward * entry.weight * cosine
                    if worth > best_worth:
                        best, best_worth = place, worth
            if best >= 0:
                round_.send(entry, board.workers[best], AdmissionReason.SINGLE)
                board.admitted(best, entry.weight)
