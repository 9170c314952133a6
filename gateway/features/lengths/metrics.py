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
            "Where the threshold of a pool of ours stands that tunes itself.",
            labels=["pool"],
        )
        moves = CounterMetricFamily(MOVES, "How often it was moved, and why.", labels=["pool", "move"])
        for pool, threshold in self._tuning.thresholds.items():
            tokens.add_metric([pool], threshold.tokens)
            for move, count in threshold.moves.items():
                moves.add_metric([pool, move], count)
        yield tokens
        yield moves


def _counts(figures: PoolFigures) -> Iterator[Metric]:
    placed = CounterMetricFamily(
        "nightside_pool_placements",
        "Placements by budget, by the pool of ours and the step that led there.",
        labels=["model", "pool", "step"],
    )
    misrouted = CounterMetricFamily(
        MISROUTED,
        "Requests that went to a pool too short for them, by how that showed.",
        labels=["model", "pool", "how"],
    )
    preempted = CounterMetricFamily(
        "nightside_pool_preemptions",
        "Sequences that engines of a pool put back into their queues for want of room, where they tell.",
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
        "nightside_pool_queue_length", "Requests that wait and are meant for a pool of ours.", labels=["model", "pool"]
    )
    learnt = GaugeMetricFamily(
        "nightside_replica_context_tokens_learnt",
        "What a replica's engine takes, where it refused a request that by the region file it takes.",
        labels=["replica"],
    )
    for (model, pool), length in figures.waiting.items():
        waiting.add_metric([model, pool], length)
    ratios = GaugeMetricFamily(
        "nightside_bytes_per_token",
        "Bytes of a prompt's text that are reckoned as a token, by what engines counted.",
        labels=["model", "category"],
    )
    for replica_id, tokens in figures.learnt.items():
        learnt.add_metric([replica_id], tokens)
    for (model, category), ratio in figures.ratios.items():
        ratios.add_metric([model, category], ratio)
    yield waiting
    yield learnt
    yield ratios
