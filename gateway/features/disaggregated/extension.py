"""Disaggregated pools, outside the core: their series, and output-length predictors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from prometheus_client import CollectorRegistry

from gateway.config.orders import Orders
from gateway.config.sections import GatewayConfig
from gateway.control.histories import HistoryOffer
from gateway.core.features.disaggregated.admissions import AdmissionReason
from gateway.core.features.disaggregated.config import decode_of, policy_source
from gateway.core.features.disaggregated.feature import decode_figures_of, decode_policies_of, decode_pools_of
from gateway.core.gateway_core import GatewayCore
from gateway.core.vocabulary import Connector, PoolKind, PoolName, PoolSpec, RequestProfile
from gateway.features.disaggregated.metrics import DecodeLevels, history_counts
from gateway.features.disaggregated.predictors import Predictors, PromptKeys
from gateway.features.extension import Extension, Host
from mesh.control.pool_history import PoolHistory, history_fault
from mesh.control.vocabulary import CONNECTOR_ABILITY, DECODE_POLICY_ABILITY
from mesh.series import Label
from mesh.supervisor import OwnedLoops, Supervisor
from mesh.threads import finish_in_thread


class DisaggregatedExtension(Extension):
    """Keeps predictors of own and adopted pools, and shows figures of decode workers."""

    name = "disaggregated"
    labels: ClassVar = {
        ("nightside_decode_admissions_total", "reason"): Label(
            "Step of the decode policy that chose the worker.", tuple(AdmissionReason)
        ),
    }

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:
        self._config = config
        self._host = host
        self._predictors: Predictors | None = None
        self._histories = history_counts()
        levels = DecodeLevels(lambda: decode_figures_of(host.core, host.clock.now_ns()), self._histories)
        host.metrics.registry.register(levels)
        self._loops: Supervisor | None = None
        """Loops of the gateway, once it runs."""
        self._has_begun = self._has_pools = False
        self._pools: tuple[PoolSpec, ...] = ()
        self._unread: Mapping[PoolName, tuple[Path, ...]] = {}
        self._keys: PromptKeys | None = None
        """Keys of prompts; None until this gateway has had a disaggregated pool."""
        if config.control.controllers or any(pool.kind is PoolKind.DISAGGREGATED for pool in config.pools):
            self.prompt_key = self._key_of  # no other gateway ever has such a pool

    @staticmethod
    def register_series(registry: CollectorRegistry, core: GatewayCore, /) -> None:  # noqa: ARG004
        registry.register(DecodeLevels(dict, history_counts()))

    def apply(self, config: GatewayConfig, orders: Orders, /) -> None:
        self._config = config
        self._pools = tuple(pool for pool in orders.pools if pool.kind is PoolKind.DISAGGREGATED)
        self._unread = orders.unread
        if self._pools and not self._has_pools:
            self._has_pools = True
            if self._loops is None:
                self._keys = PromptKeys(config, self._host.log)
            else:
                self._loops.run("prompt_keys", self._read_keys)
        if self._has_begun:
            self.begin()

    def run(self, loops: Supervisor, tenure: OwnedLoops, /) -> None:
        self._loops = loops
        self._predictors = Predictors(self._config, self._host, tenure, self._histories.add)

    async def _read_keys(self) -> None:
        """Read the secret for a first pool that is adopted while requests run; until then, prompts have no keys."""
        self._keys = await finish_in_thread(PromptKeys, self._config, self._host.log)

    def begin(self) -> None:
        """Follow the pools in force."""
        assert self._predictors is not None, "loops run before requests are served"
        self._has_begun = True
        self._predictors.follow(self._pools)

    def abilities(self) -> tuple[str, ...]:
        connectors = (f"{CONNECTOR_ABILITY} {each}" for each in Connector)
        policies = (f"{DECODE_POLICY_ABILITY} {each}" for each in sorted(decode_policies_of(self._host.core)))
        return (*connectors, *policies)

    def pool_histories(self) -> list[HistoryOffer]:
        return [] if self._predictors is None else self._predictors.offers()

    def take_history(self, history: PoolHistory, /) -> None:
        if fault := history_fault(history):
            self._histories.add("refused")
            self._host.log.warning("pool_history_unusable", recorded_by=history.recorded_by, reason=fault)
        elif self._predictors is not None:
            self._predictors.take_history(history)

    def _key_of(self, profile: RequestProfile) -> bytes:
        return b"" if self._keys is None else self._keys.of(profile)

    def describe(self) -> object | None:
        if self._predictors is None or not self._pools:
            return None
        predictors = self._predictors.describe()
        return {"pools": [self._describe(pool, predictors.get(pool.name)) for pool in self._pools]}

    def _describe(self, spec: PoolSpec, predictor: object | None) -> dict[str, object]:
        pool = decode_pools_of(self._host.core).get(spec.name)
        config = decode_of(spec) if pool is None else pool.config
        return {
            "name": spec.name,
            "policy": config.policy,
            "policy_by": policy_source(spec, config),
            "is_degraded": pool is not None and pool.tier.is_degraded,
            "files_not_read": [str(path) for path in self._unread.get(spec.name, ())],
            "predictor": predictor,
        }
