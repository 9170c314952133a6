"""Metrics of requests by what becomes of their spans. It neither keeps nor sends spans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mesh.series import CounterSeries

NOT_KEPT = "no"


class SpanBuffer(Protocol):
    """Buffer of requests whose spans wait for export."""

    exported: int
    refused: int
    overflowed: int

    def __len__(self) -> int: ...


class TraceMetrics:
    """Counters of traced requests, all zero where tracing is off."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = CounterSeries(
            "nightside_traced_requests",
            "Ended requests, by the reason for which their spans are kept (`head`, `failed`, `resumed`, "
            "`slow`, `forwarded`) or `no`.",
            ("kept",),
        )
        self._waiting: SpanBuffer | None = None
        registry.register(self.requests)
        registry.register(_Levels(lambda: self._waiting))

    def follow(self, waiting: SpanBuffer) -> None:
        self._waiting = waiting


class _Levels(Collector):
    def __init__(self, waiting: Callable[[], SpanBuffer | None]) -> None:
        self._waiting = waiting

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        waiting = self._waiting()
        exported, refused, overflowed, length = (
            (0, 0, 0, 0) if waiting is None else (waiting.exported, waiting.refused, waiting.overflowed, len(waiting))
        )
        yield CounterMetricFamily(
            "nightside_traces_exported", "Requests whose spans the collector accepted.", value=exported
        )
        dropped = CounterMetricFamily(
            "nightside_traces_dropped",
            "Requests whose spans were kept but not exported, because the queue was full (`full`) or the "
            "collector failed (`refused`).",
            labels=("reason",),
        )
        dropped.add_metric(("full",), overflowed)
        dropped.add_metric(("refused",), refused)
        yield dropped
        yield GaugeMetricFamily("nightside_traces_waiting", "Requests whose spans wait for export.", value=length)
