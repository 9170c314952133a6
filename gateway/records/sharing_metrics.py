"""Metrics of how the fleet is shared: waiting requests by tenant and class, drain rates of queues, and outcomes of the
classes' promises. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.core.kernel.description import SharingFigures
from gateway.core.vocabulary import ModelName, TenantName

_Name = TypeVar("_Name")


class SharingLevels(Collector):
    """Collector that reads the core at each scrape. The caller's label functions bound the labels."""

    def __init__(
        self,
        figures: Callable[[], SharingFigures],
        tenant: Callable[[TenantName], str],
        model: Callable[[ModelName], str],
    ) -> None:
        self._figures = figures
        self._tenant = tenant
        self._model = model

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        figures = self._figures()
        promises = CounterMetricFamily(
            "nightside_class_requests",
            "Client requests that ended, by service class and by whether the objective of the class was met.",
            labels=["service_class", "promise"],
        )
        for (service_class, promise), count in figures.promises.items():
            promises.add_metric([service_class, promise], count)
        yield promises
        interrupted = CounterMetricFamily(
            "nightside_interruptions",
            "Running attempts that were ended so that an interactive request has the slot, by class of the request.",
            labels=["service_class"],
        )
        for service_class, count in figures.interrupted.items():
            interrupted.add_metric([service_class], count)
        yield interrupted
        waiting = GaugeMetricFamily(
            "nightside_class_queue_length",
            "Requests waiting for a target, by the service class that they are served as.",
            labels=["service_class"],
        )
        for service_class, length in figures.waiting.items():
            waiting.add_metric([service_class], length)
        yield waiting
        yield self._by_tenant(figures)
        drains = GaugeMetricFamily(
            "nightside_queue_drain_rate",
            "Recent rate of placements from a queue with waiting requests, per second.",
            labels=["model"],
        )
        for label, rate in _summed(figures.drains, self._model).items():
            drains.add_metric([label], rate)
        yield drains
        yield GaugeMetricFamily(
            "nightside_tenants_counted", "Tenants with a fair queuing counter.", value=figures.tenants
        )
        yield CounterMetricFamily(
            "nightside_tenants_forgotten",
            "Fair queuing counters dropped because there were too many tenants.",
            value=figures.forgotten,
        )

        yield GaugeMetricFamily(
            "nightside_tenants_leaving_room",
            "Tenants that yield to others because they run more than their share.",
            value=figures.leaving_room,
        )

    def _by_tenant(self, figures: SharingFigures) -> Metric:
        """Queue lengths by tenant label; tenants with the same label are added up."""
        waiting = GaugeMetricFamily(
            "nightside_tenant_queue_length", "Requests waiting for a target, by tenant.", labels=["tenant"]
        )
        for label, length in _summed(figures.waiting_of, self._tenant).items():
            waiting.add_metric([label], length)
        return waiting


def _summed(numbers: Mapping[_Name, float], label_of: Callable[[_Name], str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, number in numbers.items():
        label = label_of(name)
        found[label] = found.get(label, 0) + number
    return found
