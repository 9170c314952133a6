"""A baseline: of two drawn by chance, maybe the same one twice, the one with fewer requests. It asks nobody else."""

from __future__ import annotations

from gateway.core.decode.books import Worker
from gateway.core.decode.policy import DecodePolicy


class PowerOfTwo(DecodePolicy):
    def choose(self, _tokens: int, workers: list[Worker], /) -> Worker:
        one = workers[self.rng.randrange(len(workers))]
        other = workers[self.rng.randrange(len(workers))]
        return one if one.free >= other.free else other
