"""Simulates decode workers that step together, around a real decode tier: without gateways, engines or time other than
steps.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import numpy.typing as npt

from gateway.core.features.disaggregated.config import DecodeConfig
from gateway.core.features.disaggregated.predictor import Facts, Numbers, Predictor
from gateway.core.features.disaggregated.tier import DecodeTier
from gateway.core.vocabulary import Connector, PoolKind, PoolName, PoolSpec, ReplicaId, RequestId

_STEP_NS = 30_000_000
_FAR_NS = 1 << 60


@dataclass(frozen=True)
class Load:
    """Step at which each request's prompt is ready, and its numbers of prompt and output tokens."""

    arrivals: list[int]
    prompts: list[int]
    outputs: list[int]


def heavy_tailed(requests: int, slots: int, offered: float, seed: int) -> Load:
    """Requests with lengths of a heavy-tailed distribution, at a rate that keeps `offered` times this many slots
    busy."""
    rng = random.Random(seed)
    prompts = [min(30_000, max(50, int(rng.lognormvariate(7.0, 1.0)))) for _ in range(requests)]
    outputs = [min(1_000, max(8, int(rng.lognormvariate(4.0, 1.0)))) for _ in range(requests)]
    last = requests / (offered * slots / fmean(outputs))
    return Load(sorted(int(rng.uniform(0, last)) for _ in range(requests)), prompts, outputs)


class Oracle(Predictor):
    """Predictor that knows each request's output length."""

    def __init__(self, load: Load) -> None:
        self._outputs = {f"q{number}": output for number, output in enumerate(load.outputs)}

    def estimate(self, ages: npt.NDArray[np.int64], facts: list[Facts], horizon: int) -> tuple[Numbers, Numbers]:
        left = np.array([self._outputs[each.request_id] for each in facts], np.float64) - ages
        return (left <= horizon).astype(np.float64), left


@dataclass(frozen=True)
class Played:
    imbalance: float
    """Difference between the largest and the smallest KV load, averaged over the steps while requests arrive, without
    the first ones."""
    deficit: float
    steps: int
    degraded: int


def play(config: DecodeConfig, load: Load, *, workers: int, batch: int, predictor: Predictor | None = None) -> Played:
    spec = PoolSpec(PoolName("pd"), PoolKind.DISAGGREGATED, Connector.NIXL, batch)
    tier = DecodeTier(config, spec, random.Random(1), predictor)
    for number in range(workers):
        tier.join(ReplicaId(f"w{number:03}"), "dp", 0)
    running: dict[RequestId, tuple[int, int]] = {}
    imbalances, deficits = [], []
    come = step = 0
    last, first = load.arrivals[-1], load.arrivals[len(load.arrivals) // 5]
    while come < len(load.arrivals) or running or tier.figures(step).pooled:
        now_ns = step * _STEP_NS
        while come < len(load.arrivals) and load.arrivals[come] <= step:
            tier.add(Facts(RequestId(f"q{come}"), load.prompts[come]), now_ns, _FAR_NS)
            come += 1
        for admission in tier.tick(now_ns):
            running[admission.key] = (0, load.outputs[int(admission.key[1:])])
        if first <= step <= last:
            (group,) = tier.figures(now_ns).groups
            imbalances.append(group.imbalance)
            deficits.append(group.deficit)
        for key, (generated, output) in list(running.items()):
            running[key] = generated + 1, output
            tier.progressed(key, generated + 1)
            if generated + 1 >= output:
                del running[key]
                tier.ended(key, now_ns, output)
        step += 1
    return Played(fmean(imbalances), fmean(deficits), step, tier.figures(0).ticks_degraded)
