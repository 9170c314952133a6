"""Catalogue of every series that a gateway's metrics page can have, for documentation and alert rules. No request is
needed.

It builds an idle gateway core and shows no values.
"""

from __future__ import annotations

from gateway.core.description import gauges_of, sharing_of
from gateway.core.features.lengths.feature import pools_by_length
from gateway.core.features.limits.feature import limits_of
from gateway.core.gateway_core import GatewayCore
from gateway.core.vocabulary import GatewayId, Jurisdiction, Place, RegionName
from gateway.ground.naming.counters import DnsCounters
from gateway.ground.series import Described
from gateway.ground.tokens.counters import TokenCounters
from gateway.records.audit import AuditLevels
from gateway.records.control_metrics import ControlLevels
from gateway.records.decode_metrics import DecodeLevels
from gateway.records.limit_metrics import BudgetLevels, LimitLevels
from gateway.records.metrics import Metrics
from gateway.records.pool_metrics import PoolLevels, ThresholdLevels
from gateway.records.price_metrics import PriceLevels
from gateway.records.scaling_metrics import ScalingMetrics

_PLACE = Place(RegionName("nowhere"), Jurisdiction("none"))


def catalogue() -> list[Described]:
    """Descriptions in the order of the page."""
    core = GatewayCore(GatewayId("nobody"), _PLACE, seed=0)
    metrics = Metrics(lambda: gauges_of(core, 0), core, {})
    metrics.registry.register(AuditLevels(None))
    metrics.registry.register(ControlLevels(None))
    metrics.registry.register(DecodeLevels(dict))
    metrics.registry.register(PoolLevels(pools_by_length(core).figures))
    metrics.registry.register(ThresholdLevels(pools_by_length(core).tuning))
    metrics.registry.register(PriceLevels(None))
    metrics.follow_sharing(lambda: sharing_of(core, 0))
    metrics.registry.register(LimitLevels(limits_of(core), str))
    metrics.registry.register(BudgetLevels(int, int, bool))
    ScalingMetrics(metrics.registry, tuple)
    for each in (*DnsCounters().collectors(), *TokenCounters().collectors()):
        metrics.registry.register(each)
    return metrics.catalogue()
