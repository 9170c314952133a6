"""Baseline: workers in turn, skipping those without a free slot."""

from __future__ import annotations

import random

from gateway.core.features.disaggregated.books import Worker
from gateway.core.features.disaggregated.config import DecodeConfig
from gateway.core.features.disaggregated.policy import DecodePolicy
from gateway.core.features.disaggregated.predictor import Facts, Predictor
from gateway.core.features.disaggregated.seats import Seats
from gateway.core.vocabulary import ReplicaId


class DecodeRoundRobin(DecodePolicy):
    def __init__(
        self,
        config: DecodeConfig,
        rng: random.Random,
        predictor: Predictor | None = None,
        seats: Seats | None = None,
    ) -> None:
        super().__init__(config, rng, predictor, seats)
        self._last = ReplicaId("")

    def choose(self, _facts: Facts, workers: list[Worker], /) -> Worker:
        """Choose the next worker in order of ids, so that workers that join or leave do not change the turn of the
        others."""
        ahead = [worker for worker in workers if worker.id > self._last]
        chosen = min(ahead or workers, key=_id)
        self._last = chosen.id
        return chosen


def _id(worker: Worker) -> str:
    return worker.id
