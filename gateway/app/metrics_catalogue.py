"""Catalogue of every series that a gateway's metrics page can have, for documentation and alert rules. No request is
needed.

It builds an idle gateway core and shows no values.
"""

from __future__ import annotations

from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.description import gauges_of, sharing_of
from gateway.core.vocabulary import GatewayId, Jurisdiction, Place, RegionName
from gateway.features.catalogue import KINDS
from gateway.records.audit import AuditLevels
from gateway.records.budget_metrics import BudgetLevels
from gateway.records.control_metrics import ControlLevels
from gateway.records.metrics import GatewayMetrics
from mesh.naming.counters import DnsCounters
from mesh.series import Described
from mesh.tokens.counters import TokenCounters

_PLACE = Place(RegionName("nowhere"), Jurisdiction("none"))


def catalogue() -> list[Described]:
    """Descriptions in the order of the page."""
    core = GatewayCore(GatewayId("none"), _PLACE, seed=0)
    metrics = GatewayMetrics(lambda: gauges_of(core, 0), core, {})
    metrics.registry.register(AuditLevels(None))
    metrics.registry.register(ControlLevels(None))
    metrics.follow_sharing(lambda: sharing_of(core, 0))
    metrics.registry.register(BudgetLevels(int, int, bool))
    for kind in KINDS:
        kind.register_series(metrics.registry, core)
    for each in (*DnsCounters().collectors(), *TokenCounters().collectors()):
        metrics.registry.register(each)
    return metrics.catalogue()
