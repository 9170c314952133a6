"""Metrics of tenants' limits. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.core.features.limits.feature import TenantLimits
from gateway.core.vocabulary import TenantName
from gateway.records.tenant_labels import OTHER


class LimitLevels(Collector):
    """Collector that reads the core at each scrape. A tenant that logs may not name, or that shares its label with
    others, has no series of its own."""

    def __init__(self, limits: TenantLimits, tenant_label: Callable[[TenantName], str]) -> None:
        self._limits = limits
        self._tenant_label = tenant_label

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        whole = GaugeMetricFamily(
            "nightside_tenant_limit",
            "Limit of an active tenant, over all gateways that share it.",
            labels=["tenant", "limit"],
        )
        share = GaugeMetricFamily(
            "nightside_tenant_limit_share",
            "Share of a tenant's limit that this gateway may use.",
            labels=["tenant", "limit"],
        )
        running = GaugeMetricFamily(
            "nightside_tenant_limit_running",
            "Requests in flight that count for a tenant's limits at this gateway.",
            labels=["tenant"],
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
            "nightside_tenant_limits_counted",
            "Tenants with limits that are counted at this gateway.",
            value=len(self._limits),
        )
        yield GaugeMetricFamily(
            "nightside_tenant_limits_untold",
            "Active tenants with limits that do not fit into heartbeats.",
            value=self._limits.untold,
        )
