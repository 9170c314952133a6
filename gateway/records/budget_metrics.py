"""Metrics of budgets that gateways share. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class BudgetLevels(Collector):
    """Collector that reads at each scrape how many reports on budgets were received."""

    def __init__(self, words: Callable[[], int], not_kept: Callable[[], int], is_failing: Callable[[], bool]) -> None:
        self._words = words
        self._not_kept = not_kept
        self._is_failing = is_failing

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "nightside_budgets_heard",
            "Budget reports of other gateways in memory, one per gateway and budget.",
            value=self._words(),
        )
        yield CounterMetricFamily(
            "nightside_budgets_not_heard",
            "Budget reports of other gateways that were ignored, because their day is implausible or there "
            "are too many.",
            value=self._not_kept(),
        )
        yield GaugeMetricFamily(
            "nightside_usage_failing",
            "1 while usage records cannot be read or written, so that budgets would not survive a restart.",
            value=self._is_failing(),
        )
