"""Baseline: the worker with fewest KV tokens; of equal ones, a random one. The size of the new request is ignored."""

from __future__ import annotations

from gateway.core.features.disaggregated.books import Worker
from gateway.core.features.disaggregated.policy import DecodePolicy
from gateway.core.features.disaggregated.predictor import Facts


class LeastKvTokens(DecodePolicy):
    def choose(self, _facts: Facts, workers: list[Worker], /) -> Worker:
        load_min = min([worker.total_load for worker in workers])
        best = [worker for worker in workers if worker.total_load == load_min]
        return best[self.rng.randrange(len(best))]
