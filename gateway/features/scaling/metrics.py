"""Metrics of wanted replicas per pool and the figures behind them, for an autoscaler such as KEDA or Kubernetes' HPA.
It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.core.features.scaling.vocabulary import WHOLE, Want
from mesh.series import CounterSeries

_LABELS = ("region", "model", "pool")


class ScalingMetrics:
    """Scaling series; all are registered even if no pool is scaled."""

    def __init__(self, registry: CollectorRegistry, wants: Callable[[], Iterable[Want]]) -> None:
        self.changes = CounterSeries(
            "nightside_replicas_wanted_changes",
            "Changes of the wanted number of replicas, by cause.",
            (*_LABELS, "reason"),
        )
        self.messages = CounterSeries(
            "nightside_scaling_messages",
            "Webhook messages for changes of the wanted number of replicas, by result.",
            ("result",),
        )
        registry.register(ScalingLevels(wants))
        registry.register(self.changes)
        registry.register(self.messages)


class ScalingLevels(Collector):
    """Collector that reads the wants at each scrape. Pools and models are those that the operator named."""

    def __init__(self, wants: Callable[[], Iterable[Want]]) -> None:
        self._wants = wants

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        wants = list(self._wants())
        yield _level("replicas_wanted", "Wanted number of replicas of a pool in this region.", wants, _wanted)
        yield _level(
            "replicas_wanted_alone",
            "Number of replicas of a pool that would be wanted without neighbour regions.",
            wants,
            _alone,
        )
        yield _level("replicas_ready", "Replicas of a pool in this region that are healthy.", wants, _ready)
        yield _level(
            "replicas_missing",
            "Replicas wanted beyond `replicas_max` of the pool.",
            wants,
            _missing,
        )
        yield _level(
            "scaling_offered_requests",
            "Average concurrency that this region's clients demand, wherever it runs.",
            wants,
            _offered,
        )
        yield _level(
            "scaling_borrowed_requests",
            "Part of the demanded concurrency that is expected to run on neighbour regions' replicas.",
            wants,
            _borrowed,
        )
        yield _level(
            "scaling_lent_requests",
            "Concurrency of neighbour regions' clients that is expected to run on this region's replicas.",
            wants,
            _lent,
        )


def _level(name: str, words: str, wants: Iterable[Want], value: Callable[[Want], float]) -> Metric:
    family = GaugeMetricFamily(f"nightside_{name}", words, labels=_LABELS)
    for want in wants:
        family.add_metric([want.region, want.key.model, want.key.pool], value(want))
    return family


def _wanted(want: Want) -> float:
    return want.wanted


def _alone(want: Want) -> float:
    return want.alone


def _ready(want: Want) -> float:
    return want.ready


def _missing(want: Want) -> float:
    return want.missing_replicas


def _offered(want: Want) -> float:
    return want.offered / WHOLE


def _borrowed(want: Want) -> float:
    return want.borrowed / WHOLE


def _lent(want: Want) -> float:
    return want.lent / WHOLE
