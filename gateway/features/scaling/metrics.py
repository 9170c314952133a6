"""Metrics of wanted replicas per pool and the figures behind them, for an autoscaler such as KEDA or Kubernetes' HPA.
It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.core.features.scaling.vocabulary import WHOLE, Want
from mesh.series import Tally

_LABELS = ("region", "model", "pool")


class ScalingMetrics:
    """Scaling series; all are registered even if no pool is scaled."""

    def __init__(self, registry: CollectorRegistry, wants: Callable[[], Iterable[Want]]) -> None:
        self.changes = Tally(
            "nightside_replicas_wanted_changes",
            "How often the number of replicas wanted has changed, and why.",
            (*_LABELS, "reason"),
        )
        self.messages = Tally(
            "nightside_scaling_messages",
            "Messages of such changes to the webhook, by what became of them.",
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
        yield _level("replicas_wanted", "Replicas that this region is to have of a pool.", wants, _wanted)
        yield _level("replicas_wanted_alone", "Replicas that it would want if there were no neighbours.", wants, _alone)
        yield _level("replicas_ready", "Replicas of a pool in this region that answer.", wants, _ready)
        yield _level(
            "replicas_missing",
            "How many more would be wanted, if this region might have as many.",
            wants,
            _missing,
        )
        yield _level(
            "scaling_offered_requests",
            "Requests of this region's clients that want to run at once, wherever they do, averaged.",
            wants,
            _offered,
        )
        yield _level(
            "scaling_borrowed_requests",
            "Of these, those that neighbours' replicas are counted on for.",
            wants,
            _borrowed,
        )
        yield _level(
            "scaling_lent_requests",
            "Requests of neighbours that this region's replicas are counted on for.",
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
