"""A decode tier under a standing backlog, whose ticks are timed stage by stage. It judges nothing."""

from __future__ import annotations

import random
import time
from collections import deque
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gateway.core.features.disaggregated.admissions import DecodeAdmission
from gateway.core.features.disaggregated.balance_route import BalanceRoute
from gateway.core.features.disaggregated.config import DecodeConfig, DecodePolicyName
from gateway.core.features.disaggregated.predictor import Facts, Numbers, Predictor
from gateway.core.features.disaggregated.tier import DecodeTier
from gateway.core.vocabulary import Connector, PoolKind, PoolName, PoolSpec, ReplicaId, RequestId

STAGES = ("prepare", "aged", "greedy", "refined", "tick")
_BATCH = 32
_FREED_MAX = 8
_FAR_NS = 1 << 60
_INTERVAL_NS = 10_000_000
_STEP_TICKS = 5
"""Ticks per decode step."""
_SPEC = PoolSpec(PoolName("bench"), PoolKind.DISAGGREGATED, Connector.NIXL, _BATCH)


class TickLengths(Predictor):
    """Predictor backed by one sorted array: the calculation of the deployed kind, without a history to read."""

    def __init__(self, rng: random.Random) -> None:
        self._sorted = np.sort(np.array([rng.lognormvariate(5.6, 1.0) for _ in range(10_000)]))
        self._sums = np.concatenate(([0.0], np.cumsum(self._sorted)))

    def estimate(self, ages: npt.NDArray[np.int64], facts: list[Facts], horizon: int) -> tuple[Numbers, Numbers]:
        del facts
        alive = np.searchsorted(self._sorted, ages, side="right")
        within = np.searchsorted(self._sorted, ages + horizon, side="right")
        ending = np.maximum(1, within - alive)
        mean = np.where(within > alive, (self._sums[within] - self._sums[alive]) / ending - ages, horizon)
        return (within - alive) / np.maximum(1, len(self._sorted) - alive), mean


class Backlog:
    """Fixed number of workers and of waiting requests, refilled after admissions. Before each tick one to eight slots
    are freed, or as many as make `free_slots`."""

    def __init__(self, policy: DecodePolicyName, workers: int, waiting: int, free_slots: int = 0) -> None:
        self._rng = random.Random(7)
        self._waiting = waiting
        self._free_slots = free_slots
        self._now_ns = self._added = self._ticks = 0
        self._ages: dict[RequestId, int] = {}
        self._order: deque[RequestId] = deque()
        filling = DecodeConfig(admissions_max=100_000, considered_max=0)
        self._tier = DecodeTier(filling, _SPEC, random.Random(2), TickLengths(self._rng))
        for number in range(workers):
            self._tier.join(ReplicaId(f"w{number}"), "dp", 0)
        self._add(workers * _BATCH)
        self._note(self._tier.tick(0))
        for key in self._ages:
            self._ages[key] = self._rng.randrange(400)
            self._tier.progressed(key, self._ages[key])
        self._tier.configure(DecodeConfig(policy=policy, pool_ttl_ns=_FAR_NS), _SPEC, 0)
        self._add(waiting)

    def tick(self) -> dict[str, float]:
        """Run one tick; returns milliseconds of CPU by stage, and `admitted`."""
        self._now_ns += _INTERVAL_NS
        self._ticks += 1
        free = self._tier.figures(self._now_ns).free_slots
        for _ in range(max(self._rng.randint(1, _FREED_MAX), self._free_slots - free)):
            self._order.rotate(self._rng.randrange(len(self._order)))
            key = self._order.popleft()
            del self._ages[key]
            self._tier.ended(key, self._now_ns)
        if self._ticks % _STEP_TICKS == 0:
            for key, age in self._ages.items():
                self._ages[key] = age + 1
                self._tier.progressed(key, age + 1)
        took = self._timed()
        self._add(int(took["admitted"]))
        return took

    def _timed(self) -> dict[str, float]:
        tier, policy = self._tier, self._tier.policy
        marks = [time.thread_time_ns()]
        round_ = tier.begin(self._now_ns)
        if isinstance(policy, BalanceRoute):
            board = policy.prepare(round_)
            marks.append(time.thread_time_ns())
            for stage in (policy.admit_aged, policy.admit_greedily, policy.admit_refined):
                stage(round_, board)
                marks.append(time.thread_time_ns())
        else:
            policy.admit(round_)
        tier.finish(round_)
        marks.append(time.thread_time_ns())
        self._note(round_.admissions)
        spent = [(later - earlier) / 1e6 for earlier, later in pairwise(marks)]
        took = dict(zip(STAGES, spent[:-1], strict=False))
        return took | {"tick": (marks[-1] - marks[0]) / 1e6, "admitted": float(len(round_.admissions))}

    def _note(self, admissions: list[DecodeAdmission]) -> None:
        for admission in admissions:
            self._ages[admission.key] = 0
            self._order.append(admission.key)

    def _add(self, requests: int) -> None:
        for _ in range(requests):
            self._added += 1
            tokens = min(30_000, max(50, int(self._rng.lognormvariate(7.0, 1.0))))
            self._tier.add(Facts(RequestId(f"q{self._added}"), tokens), self._now_ns, _FAR_NS)
