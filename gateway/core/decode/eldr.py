"""ELDR: a request goes where its experts are in use already, to the least loaded of those places (§4.3.2).

Workers whose centroids are about as near to it as the nearest one's are its locality band; of those the one with the
fewest requests in flight serves it. Of groups that step in time it chooses the group, since their ranks share what is
read of the experts, and BalanceRoute the rank. A request of which nobody knows who is near joins the shortest queue.

It sends each request at once, and looks at nobody's counts: only at cosines that were worked out before.
"""

from __future__ import annotations

import random

from gateway.core.decode.balance_route import BalanceRoute
from gateway.core.decode.books import Group, Worker
from gateway.core.decode.config import DecodeConfig
from gateway.core.decode.join_shortest_queue import JoinShortestQueue
from gateway.core.decode.locality.seats import Seats
from gateway.core.decode.policy import DecodePolicy
from gateway.core.decode.predictor import Facts, Predictor


class Eldr(DecodePolicy):
    def __init__(
        self,
        config: DecodeConfig,
        rng: random.Random,
        predictor: Predictor | None = None,
        seats: Seats | None = None,
    ) -> None:
        super().__init__(config, rng, predictor, seats)
        self._band = config.locality.band
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
    """Requests at each of its workers, ours and others'."""
    workers = group.workers
    if len(workers) == 1:  # as most are, and it is asked for each of them
        return float(workers[0].in_flight + workers[0].inherited)
    return sum([worker.in_flight + worker.inherited for worker in workers]) / len(workers)
