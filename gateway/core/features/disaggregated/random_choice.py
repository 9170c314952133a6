"""Baseline: a random worker with a free slot."""

from __future__ import annotations

from gateway.core.features.disaggregated.books import Worker
from gateway.core.features.disaggregated.policy import DecodePolicy
from gateway.core.features.disaggregated.predictor import Facts


class DecodeRandomChoice(DecodePolicy):
    def choose(self, _facts: Facts, workers: list[Worker], /) -> Worker:
        return workers[self.rng.randrange(len(workers))]
