"""Figures of batches, read at each scrape. They follow no batch themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.features.batches.book import BatchBook
from gateway.features.batches.runner import BatchRunner
from gateway.features.batches.state import BatchStatus, is_at_risk

LINE_RESULTS = ("completed", "failed")
LEASE_CHANGES = ("taken_over", "lost")


class BatchSeries(Collector):
    """Batches by status, lines by result, and batches whose window is at risk or that an error has stopped."""

    def __init__(self, book: BatchBook | None = None, runner: BatchRunner | None = None) -> None:
        """Book and runner are None where the series are only described."""
        self._book = book
        self._runner = runner

    def describe(self) -> Iterable[Metric]:
        return ()

    def _families(
        self,
    ) -> tuple[
        GaugeMetricFamily,
        CounterMetricFamily,
        CounterMetricFamily,
        GaugeMetricFamily,
        GaugeMetricFamily,
        CounterMetricFamily,
        GaugeMetricFamily,
    ]:
        return (
            GaugeMetricFamily(
                "nightside_batches",
                "Batches that are kept and that no other gateway runs, by status.",
                labels=("status",),
            ),
            CounterMetricFamily("nightside_batch_lines", "Lines of batches that ended, by result.", labels=("result",)),
            CounterMetricFamily(
                "nightside_batch_urgent_tries",
                "Tries of lines as class `interactive`, since their batch would miss its window.",
                labels=(),
            ),
            GaugeMetricFamily(
                "nightside_batches_at_risk", "Batches that would miss their window at the rate so far.", labels=()
            ),
            GaugeMetricFamily(
                "nightside_batches_stopped", "Batches that met an internal error and wait for another try.", labels=()
            ),
            CounterMetricFamily(
                "nightside_batch_leases",
                "Batches that changed their gateway without its consent, by side.",
                labels=("change",),
            ),
            GaugeMetricFamily(
                "nightside_batch_store_up", "1 if the store of batches is open and answers, else 0.", labels=()
            ),
        )

    def collect(self) -> Iterator[Metric]:
        families = batches, lines, urgent, at_risk, stopped, leases, store_up = self._families()
        if self._book is None or self._runner is None:
            yield from families
            return
        own = self._book.not_elsewhere()
        counts = Counter(each.status for each in own)
        for status in BatchStatus:
            batches.add_metric((status,), counts[status])
        lines.add_metric(("completed",), self._runner.counts.completed)
        lines.add_metric(("failed",), self._runner.counts.failed)
        urgent.add_metric((), self._runner.counts.urgent)
        at_risk.add_metric((), sum(is_at_risk(each, self._runner.now_s) for each in own))
        stopped.add_metric((), self._runner.stopped)
        leases.add_metric((LEASE_CHANGES[0],), self._runner.counts.taken_over)
        leases.add_metric((LEASE_CHANGES[1],), self._runner.counts.lost)
        store_up.add_metric((), self._book.is_open and not self._runner.store_fault)
        yield from families
