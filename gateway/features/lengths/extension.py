"""Pools by length, outside the core: their series, and the learnt estimates on disk."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

from prometheus_client import CollectorRegistry

from gateway.config.sections import GatewayConfig
from gateway.core.features.lengths.events import TokenBudgetRestored
from gateway.core.features.lengths.feature import Misroute, pools_by_length
from gateway.core.features.lengths.threshold import Move
from gateway.core.gateway_core import GatewayCore
from gateway.core.vocabulary import PoolStep
from gateway.features.extension import Extension, Host
from gateway.features.lengths.metrics import MISROUTED, MOVES, PoolLevels, ThresholdLevels
from gateway.features.lengths.token_budget import TokenBudgetKeeper
from mesh.series import EVERY_SERIES, Label
from mesh.supervisor import OwnedLoops, Supervisor


class LengthsExtension(Extension):
    """Keeps the learnt estimates over a restart, where the gateway keeps state on disk."""

    name = "lengths"
    labels: ClassVar[Mapping[tuple[str, str], Label]] = {
        (EVERY_SERIES, "step"): Label("Step that chose the pool of the request.", tuple(PoolStep)),
        (f"{MISROUTED}_total", "how"): Label("Symptom of a pool that is too short for the request.", tuple(Misroute)),
        (f"{MOVES}_total", "move"): Label("Cause of the change.", tuple(Move)),
    }

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:
        self._config = config
        self._host = host
        self._token_budget = pools_by_length(host.core).token_budget
        self.register_series(host.metrics.registry, host.core)

    @staticmethod
    def register_series(registry: CollectorRegistry, core: GatewayCore, /) -> None:
        feature = pools_by_length(core)
        registry.register(PoolLevels(feature.figures))
        registry.register(ThresholdLevels(feature.tuning))

    def run(self, loops: Supervisor, tenure: OwnedLoops, /) -> None:  # noqa: ARG002
        """Read the stored estimates, and save them repeatedly."""
        folder = self._config.state.folder
        if folder is None:
            return
        keeper = TokenBudgetKeeper(self._config.gateway_id, folder, self._token_budget, self._host.log)
        keeper.restore(lambda snapshot: self._host.submit(TokenBudgetRestored(snapshot)))
        tenure.run("token_budget", partial(keeper.run, self._config.content.save_interval_ns))
