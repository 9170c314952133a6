"""Disaggregated pools, outside the core: their series, and output-length predictors."""

from __future__ import annotations

from typing import ClassVar

from prometheus_client import CollectorRegistry

from gateway.config.orders import Orders
from gateway.config.sections import GatewayConfig
from gateway.core.features.disaggregated.admissions import AdmissionReason
from gateway.core.features.disaggregated.feature import decode_figures_of
from gateway.core.gateway_core import GatewayCore
from gateway.core.vocabulary import PoolKind
from gateway.features.disaggregated.metrics import DecodeLevels
from gateway.features.disaggregated.predictors import Predictors, PromptKeys
from gateway.features.extension import Extension, Host
from mesh.series import Label
from mesh.supervisor import OwnedLoops, Supervisor


class DisaggregatedExtension(Extension):
    """Keeps predictors of the pools that the region file describes, and shows figures of decode workers."""

    name = "disaggregated"
    state_key = "predictors"
    labels: ClassVar = {
        ("nightside_decode_admissions_total", "reason"): Label(
            "Step of the decode policy that chose the worker.", tuple(AdmissionReason)
        ),
    }

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:
        self._config = config
        self._host = host
        self._predictors: Predictors | None = None
        host.metrics.registry.register(DecodeLevels(lambda: decode_figures_of(host.core, host.clock.now_ns())))
        self._has_begun = False
        if any(pool.kind is PoolKind.DISAGGREGATED for pool in config.pools):
            self.prompt_key = PromptKeys(config, host.log).of

    @staticmethod
    def register_series(registry: CollectorRegistry, core: GatewayCore, /) -> None:  # noqa: ARG004
        registry.register(DecodeLevels(dict))

    def apply(self, config: GatewayConfig, orders: Orders, /) -> None:  # noqa: ARG002
        self._config = config
        if self._has_begun:
            self.begin()

    def run(self, loops: Supervisor, tenure: OwnedLoops, /) -> None:  # noqa: ARG002
        self._predictors = Predictors(self._config, self._host, tenure)

    def begin(self) -> None:
        """Follow the pools of the config in force."""
        assert self._predictors is not None, "loops run before requests are served"
        self._has_begun = True
        self._predictors.follow(self._config.pools)

    def describe(self) -> object | None:
        return None if self._predictors is None else self._predictors.describe()
