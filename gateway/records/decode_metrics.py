"""Metrics of disaggregated pools: requests that wait for a decode worker, balance between decode workers, and outcomes
of hand-offs. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.core.features.disaggregated.admissions import DecodeFigures
from gateway.core.vocabulary import PoolName

_SECOND_NS = 1_000_000_000
Figures = Mapping[PoolName, DecodeFigures]


class DecodeLevels(Collector):
    """Collector that reads the core at each scrape. Pools and groups are those that the operator named."""

    def __init__(self, figures: Callable[[], Figures]) -> None:
        self._figures = figures

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        figures = self._figures()
        yield from _levels(figures)
        yield from _groups(figures)
        yield from _counts(figures)


def _levels(figures: Figures) -> Iterator[Metric]:
    told: list[tuple[str, str, Callable[[DecodeFigures], float]]] = [
        ("decode_pooled", "Requests whose prompt has been read and that wait for a decode worker.", lambda f: f.pooled),
        (
            "decode_pool_age_seconds",
            "How long the one that has waited longest has; its lease ends the wait.",
            lambda f: f.oldest_age_ns / _SECOND_NS,
        ),
        ("decode_dispatched", "Requests sent to a decode worker that have given no token yet.", lambda f: f.dispatched),
        ("decode_running", "Requests that decode workers write answers for.", lambda f: f.running),
        (
            "decode_inherited",
            "Requests at decode workers that another gateway sent before this one had them.",
            lambda f: f.inherited,
        ),
        ("decode_free_slots", "Requests that decode workers could run besides.", lambda f: f.free_slots),
        (
            "decode_degraded",
            "1 while the policy goes on without the predictor that it asks for.",
            lambda f: f.is_degraded,
        ),
    ]
    told += [
        (
            "decode_locality_clusters",
            "Clusters of the artifact that tells whose experts are near; 0 while there is none.",
            lambda f: f.clusters,
        ),
        (
            "decode_locality_unseated",
            "Groups of decode workers that the artifact in force has no cluster for.",
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
        "KV tokens between the fullest and the emptiest decode worker of a group: each step waits for the fullest.",
        labels=["pool", "group"],
    )
    load = GaugeMetricFamily(
        "nightside_decode_load_max_tokens", "KV tokens of a group's fullest decode worker.", labels=["pool", "group"]
    )
    for pool, each in figures.items():
        for group in each.groups:
            imbalance.add_metric([pool, group.name], group.imbalance)
            load.add_metric([pool, group.name], group.load_max)
    yield imbalance
    yield load


def _counts(figures: Figures) -> Iterator[Metric]:
    admitted = CounterMetricFamily(
        "nightside_decode_admissions", "Requests sent to a decode worker, by what chose it.", labels=["pool", "reason"]
    )
    expired = CounterMetricFamily(
        "nightside_decode_lease_expiries",
        "Prompts that were read and whose lease ended before a decode worker was free: each is read again.",
        labels=["pool"],
    )
    degraded = CounterMetricFamily(
        "nightside_decode_ticks_degraded", "Ticks that went on without the policy's predictor.", labels=["pool"]
    )
    signatures = CounterMetricFamily(
        "nightside_decode_signatures",
        "Requests sent to a decode worker by a policy of expert locality, by what became of their signatures; all but "
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
