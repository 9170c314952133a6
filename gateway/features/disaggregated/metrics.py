"""Metrics of disaggregated pools: requests that wait for a decode worker, balance between decode workers, and outcomes
of hand-offs. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.core.features.disaggregated.admissions import DecodeFigures
from gateway.core.vocabulary import PoolName
from mesh.series import CounterSeries

_SECOND_NS = 1_000_000_000
Figures = Mapping[PoolName, DecodeFigures]


class DecodeLevels(Collector):
    """Collector that reads the core at each scrape. Pools and groups are those that the operator named."""

    def __init__(self, figures: Callable[[], Figures], histories: CounterSeries) -> None:
        self._figures = figures
        self._histories = histories

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        figures = self._figures()
        yield from _levels(figures)
        yield from _groups(figures)
        yield from _counts(figures)
        yield from self._histories.collect()


def history_counts() -> CounterSeries:
    """Series of histories that travel with pools, by what became of them."""
    return CounterSeries(
        "nightside_pool_histories",
        "Histories of disaggregated pools: `sent` to the controller, `taken` from the pool's last gateway, `refused`.",
        ("result",),
    )


def _levels(figures: Figures) -> Iterator[Metric]:
    told: list[tuple[str, str, Callable[[DecodeFigures], float]]] = [
        ("decode_pooled", "Prefilled requests that wait for a decode worker.", lambda f: f.pooled),
        (
            "decode_pool_age_seconds",
            "Longest current wait of a prefilled request for a decode worker; its lease bounds the wait.",
            lambda f: f.oldest_age_ns / _SECOND_NS,
        ),
        ("decode_dispatched", "Requests sent to a decode worker that have no token yet.", lambda f: f.dispatched),
        ("decode_running", "Requests that decode workers run.", lambda f: f.running),
        (
            "decode_inherited",
            "Requests at decode workers that another gateway sent before the replicas were assigned to this one.",
            lambda f: f.inherited,
        ),
        ("decode_free_slots", "Free slots of decode workers.", lambda f: f.free_slots),
        (
            "decode_degraded",
            "1 while the decode policy runs without its predictor.",
            lambda f: f.is_degraded,
        ),
    ]
    told += [
        (
            "decode_locality_clusters",
            "Clusters of the expert locality artifact in force; 0: no artifact.",
            lambda f: f.clusters,
        ),
        (
            "decode_locality_unseated",
            "Groups of decode workers without a cluster in the expert locality artifact.",
            lambda f: f.unseated,
        ),
    ]
    for name, words, value in told:
        family = GaugeMetricFamily(f"nightside_{name}", words, labels=["pool"])
        for pool, each in figures.items():
            family.add_metric([pool], value(each))
        yield family


def _groups(figures: Figures) -> Iterator[Metric]:
    imbalance = GaugeMetricFamily(
        "nightside_decode_imbalance_tokens",
        "Difference in KV cache tokens between the fullest and the emptiest decode worker of a group; each "
        "step takes as long as the fullest worker's.",
        labels=["pool", "group"],
    )
    load = GaugeMetricFamily(
        "nightside_decode_load_max_tokens",
        "KV cache tokens of the fullest decode worker of a group.",
        labels=["pool", "group"],
    )
    for pool, each in figures.items():
        for group in each.groups:
            imbalance.add_metric([pool, group.name], group.imbalance)
            load.add_metric([pool, group.name], group.load_max)
    yield imbalance
    yield load


def _counts(figures: Figures) -> Iterator[Metric]:
    admitted = CounterMetricFamily(
        "nightside_decode_admissions",
        "Requests sent to a decode worker, by the step that chose the worker.",
        labels=["pool", "reason"],
    )
    expired = CounterMetricFamily(
        "nightside_decode_lease_expiries",
        "Prefilled requests whose lease expired before a decode worker was free, so that they were prefilled again.",
        labels=["pool"],
    )
    degraded = CounterMetricFamily(
        "nightside_decode_ticks_degraded",
        "Ticks of the decode tier without the predictor of its policy.",
        labels=["pool"],
    )
    signatures = CounterMetricFamily(
        "nightside_decode_signatures",
        "Requests sent to a decode worker under expert locality, by the state of their signature; all but "
        "`used` joined the shortest queue.",
        labels=["pool", "state"],
    )
    for pool, each in figures.items():
        for state, count in each.signatures.items():
            signatures.add_metric([pool, state], count)
        for reason, count in each.admitted.items():
            admitted.add_metric([pool, reason], count)
        expired.add_metric([pool], each.expired)
        degraded.add_metric([pool], each.ticks_degraded)
    yield admitted
    yield expired
    yield degraded
    yield signatures
