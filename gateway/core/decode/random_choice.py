"""Baseline: a random worker with a free slot."""

from __future__ import annotations

from gateway.core.decode.books import Worker
from gateway.core.decode.policy import DecodePolicy
from gateway.core.decode.predictor import Facts


class RandomChoice(DecodePolicy):
    def choose(self, _facts: Facts, workers: list[Worker], /) -> Worker:
        return workers[self.rng.randrange(len(workers))]
