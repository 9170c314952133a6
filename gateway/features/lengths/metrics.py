"""Metrics of pools that have token budgets: steps by which requests came to a pool, requests that wait for it, and
pools that proved too short. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.core.features.lengths.feature import Misroute, PoolFigures
from gateway.core.features.lengths.tuning import ThresholdTuning

MISROUTED = "nightside_pool_misroutes"
MOVES = "nightside_pool_threshold_moves"


class PoolLevels(Collector):
    """Collector that reads the core at each scrape. Pools and their models are those that the operator named."""

    def __init__(self, figures: Callable[[], PoolFigures]) -> None:
        self._figures = figures

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        figures = self._figures()
        yield from _counts(figures)
        yield from _levels(figures)


class ThresholdLevels(Collector):
    """Collector that reads the self-tuning thresholds at each scrape."""

    def __init__(self, tuning: ThresholdTuning) -> None:
        self._tuning = tuning

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        tokens = GaugeMetricFamily(
            "nightside_pool_threshold_tokens",
            "Current threshold of a self-tuning pool.",
            labels=["pool"],
        )
        moves = CounterMetricFamily(MOVES, "Changes of a pool's threshold, by cause.", labels=["pool", "move"])
        for pool, threshold in self._tuning.thresholds.items():
            tokens.add_metric([pool], threshold.tokens)
            for move, count in threshold.moves.items():
                moves.add_metric([pool, move], count)
        yield tokens
        yield moves


def _counts(figures: PoolFigures) -> Iterator[Metric]:
    placed = CounterMetricFamily(
        "nightside_pool_placements",
        "Placements by token budget, by pool and by the step that chose the pool.",
        labels=["model", "pool", "step"],
    )
    misrouted = CounterMetricFamily(
        MISROUTED,
        "Requests sent to a pool too short for them, by the symptom.",
        labels=["model", "pool", "how"],
    )
    preempted = CounterMetricFamily(
        "nightside_pool_preemptions",
        "Sequences that engines of a pool preempted for lack of KV cache, as the engines report.",
        labels=["pool"],
    )
    for (model, pool), counts in figures.counts.items():
        for step, count in counts.placed.items():
            placed.add_metric([model, pool, step], count)
        misrouted.add_metric([model, pool, Misroute.REFUSED], counts.refused)
        misrouted.add_metric([model, pool, Misroute.CUT], counts.cut)
    for pool, count in figures.preempted.items():
        preempted.add_metric([pool], count)
    yield placed
    yield misrouted
    yield preempted


def _levels(figures: PoolFigures) -> Iterator[Metric]:
    waiting = GaugeMetricFamily(
        "nightside_pool_queue_length",
        "Requests waiting for a target, by the pool that they are meant for.",
        labels=["model", "pool"],
    )
    learnt = GaugeMetricFamily(
        "nightside_replica_context_tokens_learnt",
        "Context length of a replica as learnt from refusals, in place of the one in the region file.",
        labels=["replica"],
    )
    for (model, pool), length in figures.waiting.items():
        waiting.add_metric([model, pool], length)
    ratios = GaugeMetricFamily(
        "nightside_bytes_per_token",
        "Estimated bytes per prompt token, learnt from the usage that engines report.",
        labels=["model", "category"],
    )
    for replica_id, tokens in figures.learnt.items():
        learnt.add_metric([replica_id], tokens)
    for (model, category), ratio in figures.ratios.items():
        ratios.add_metric([model, category], ratio)
    yield waiting
    yield learnt
    yield ratios
