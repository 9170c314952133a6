"""Metrics of tenants' limits, and of budgets that gateways share. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.core.features.limits.feature import Limits
from gateway.core.vocabulary import TenantName
from gateway.records.tenant_labels import OTHER


class LimitLevels(Collector):
    """Collector that reads the core at each scrape. A tenant that logs may not name, or that shares its label with
    others, has no series of its own."""

    def __init__(self, limits: Limits, tenant_label: Callable[[TenantName], str]) -> None:
        self._limits = limits
        self._tenant_label = tenant_label

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        whole = GaugeMetricFamily(
            "nightside_tenant_limit",
            "A limit of a tenant that asks for anything here, for all gateways that keep it together.",
            labels=["tenant", "limit"],
        )
        share = GaugeMetricFamily(
            "nightside_tenant_limit_share", "This gateway's share of it.", labels=["tenant", "limit"]
        )
        running = GaugeMetricFamily(
            "nightside_tenant_limit_running", "Requests under way that count for its limits here.", labels=["tenant"]
        )
        for meter in self._limits:
            tenant = self._tenant_label(meter.tenant)
            if tenant == OTHER:
                continue
            running.add_metric([tenant], meter.running)
            for kind, limit in meter.limits():
                whole.add_metric([tenant, kind], limit.limit)
                share.add_metric([tenant, kind], limit.share)
        yield whole
        yield share
        yield running
        yield GaugeMetricFamily(
            "nightside_tenant_limits_counted", "Tenants with limits that are counted here.", value=len(self._limits)
        )
        yield GaugeMetricFamily(
            "nightside_tenant_limits_untold",
            "Tenants with limits that ask for something here and are left out of heartbeats.",
            value=self._limits.untold,
        )


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
            "Words of other gateways on budgets that are remembered: one for each gateway and budget.",
            value=self._words(),
        )
        yield CounterMetricFamily(
            "nightside_budgets_not_heard",
            "Words of other gateways on budgets that did not count: of a day far from ours, or for want of room.",
            value=self._not_kept(),
        )
        yield GaugeMetricFamily(
            "nightside_usage_failing",
            "1 while the file of what clients used cannot be read or written: budgets would not survive a restart.",
            value=self._is_failing(),
        )
