"""Tenants' limits, outside the core: their series, and what is left of them for clients to read."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.registry import Collector

from gateway.core.features.limits.feature import limits_of
from gateway.core.gateway_core import GatewayCore
from gateway.features.limits.metrics import LimitLevels
from gateway.features.part import Part, Surroundings, TenantLabel


class LimitsPart(Part):
    """Shows tenants' limits."""

    def __init__(self, surroundings: Surroundings) -> None:
        self.rooms = limits_of(surroundings.core).rooms

    @staticmethod
    def levels(core: GatewayCore, tenant_label: TenantLabel, /) -> Iterable[Collector]:
        return (LimitLevels(limits_of(core), tenant_label),)
