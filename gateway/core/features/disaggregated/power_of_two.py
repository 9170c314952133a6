"""Baseline: of two random workers (possibly the same), the one with more free slots. No other worker is considered."""

from __future__ import annotations

from gateway.core.features.disaggregated.books import Worker
from gateway.core.features.disaggregated.policy import DecodePolicy
from gateway.core.features.disaggregated.predictor import Facts


class DecodePowerOfTwo(DecodePolicy):
    def choose(self, _facts: Facts, workers: list[Worker], /) -> Worker:
        one = workers[self.rng.randrange(len(workers))]
        other = workers[self.rng.randrange(len(workers))]
        return one if one.free >= other.free else other
