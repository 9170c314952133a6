"""ELDR: send a request to the least loaded worker among those whose experts it is likely to share (§4.3.2).

The locality band of a request is the set of workers whose centroids are about as near to it as the nearest one's; the
one with the fewest requests in flight serves it. Among groups of workers that step together ELDR chooses the group,
since its ranks share the experts that are read, and BalanceRoute chooses the rank. A request without a usable signature
joins the shortest queue.

Each request is sent at once. Expert counts are not needed here, only the cosines computed from them.
"""

from __future__ import annotations

import random

from gateway.core.features.disaggregated.balance_route import BalanceRoute
from gateway.core.features.disaggregated.books import Group, Worker
from gateway.core.features.disaggregated.config import DecodeConfig
from gateway.core.features.disaggregated.join_shortest_queue import JoinShortestQueue
from gateway.core.features.disaggregated.policy import DecodePolicy
from gateway.core.features.disaggregated.predictor import Facts, Predictor
from gateway.core.features.disaggregated.seats import Seats


class Eldr(DecodePolicy):
    def __init__(
        self,
        config: DecodeConfig,
        rng: random.Random,
        predictor: Predictor | None = None,
        seats: Seats | None = None,
    ) -> None:
        super().__init__(config, rng, predictor, seats)
        self._band = config.band
        self._ranks = BalanceRoute(config, rng)
        self._shortest = JoinShortestQueue(config, rng)

    def choose(self, facts: Facts, workers: list[Worker], /) -> Worker:
        near = self.seats.band(facts, workers, self._band)
        if near is None:
            return self._shortest.choose(facts, workers)
        seats = self.seats
        best, best_key = near[0].group, (float("inf"), 0)
        seen = ""
        for worker in near:
            group = worker.group
            if group.name != seen:
                seen = group.name
                key = (in_flight(group), -seats.cosine(facts, group))
                if key < best_key:
                    best, best_key = group, key
        ranks = [worker for worker in near if worker.group is best]
        return ranks[0] if len(ranks) == 1 else self._ranks.choose(facts, ranks)


def in_flight(group: Group) -> float:
    """Requests in flight per worker of the group, own and inherited."""
    workers = group.workers
    if len(workers) == 1:  # fast path: most groups have one worker
        return float(workers[0].in_flight + workers[0].inherited)
    return sum([worker.in_flight + worker.inherited for worker in workers]) / len(workers)
