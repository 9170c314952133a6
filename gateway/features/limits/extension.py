"""Tenants' limits, outside the core: their series, and what is left of them for clients to read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from prometheus_client import CollectorRegistry

from gateway.config.sections import GatewayConfig
from gateway.core.allowance import LimitKind
from gateway.core.features.limits.feature import limits_of
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.features.extension import Extension, Host
from gateway.features.limits.metrics import LimitLevels
from gateway.features.limits.notes import apart_notes
from mesh.series import EVERY_SERIES, Label


class LimitsExtension(Extension):
    """Shows tenants' limits."""

    name = "limits"
    labels: ClassVar = {(EVERY_SERIES, "limit"): Label("Kind of the tenant's limit.", tuple(LimitKind))}

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:  # noqa: ARG002
        limits = limits_of(host.core)
        self.allowances = limits.allowances
        host.metrics.registry.register(LimitLevels(limits, host.metrics.tenant_label))

    @staticmethod
    def register_series(registry: CollectorRegistry, core: GatewayCore, /) -> None:
        registry.register(LimitLevels(limits_of(core), str))

    @staticmethod
    def check_notes(config: GatewayConfig, policy: ResidencyPolicy, /) -> Iterator[str]:
        return apart_notes(config, policy)
