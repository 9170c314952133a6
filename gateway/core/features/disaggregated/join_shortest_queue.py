"""Baseline: the worker with most free slots; of equal ones, a random one. The size of requests is ignored."""

from __future__ import annotations

from gateway.core.features.disaggregated.books import Worker
from gateway.core.features.disaggregated.policy import DecodePolicy
from gateway.core.features.disaggregated.predictor import Facts


class JoinShortestQueue(DecodePolicy):
    def choose(self, _facts: Facts, workers: list[Worker], /) -> Worker:
        free_max = max([worker.free for worker in workers])
        best = [worker for worker in workers if worker.free == free_max]
        return best[self.rng.randrange(len(best))]
