"""Pools by length, outside the core: their series, and the learnt estimates on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from prometheus_client.registry import Collector

from gateway.core.events import TokenBudgetRestored
from gateway.core.features.lengths.feature import Misroute, pools_by_length
from gateway.core.features.lengths.threshold import Move
from gateway.core.gateway_core import GatewayCore
from gateway.features.lengths.metrics import PoolLevels, ThresholdLevels
from gateway.features.lengths.token_budget import TokenBudgetKeeper
from gateway.features.part import Part, Surroundings, TenantLabel
from gateway.ground.series import Label
from gateway.ground.supervisor import Tenure


class LengthsPart(Part):
    """Keeps the learnt estimates over a restart, where the gateway keeps state on disk."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._config = surroundings.config
        self._submit = surroundings.submit
        self._log = surroundings.log
        self._token_budget = pools_by_length(surroundings.core).token_budget

    @staticmethod
    def labels() -> Mapping[str, Label]:
        return {
            "how": Label("How it showed that the pool was too short.", tuple(Misroute)),
            "move": Label("Why a threshold was moved.", tuple(Move)),
        }

    @staticmethod
    def levels(core: GatewayCore, tenant_label: TenantLabel, /) -> Iterable[Collector]:  # noqa: ARG004
        feature = pools_by_length(core)
        return PoolLevels(feature.figures), ThresholdLevels(feature.tuning)

    def run(self, tenure: Tenure, /) -> None:
        """Read the stored estimates, and save them repeatedly."""
        folder = self._config.state.folder
        if folder is None:
            return
        keeper = TokenBudgetKeeper(self._config.gateway_id, folder, self._token_budget, self._log)
        keeper.restore(lambda snapshot: self._submit(TokenBudgetRestored(snapshot)))
        tenure.run("token_budget", partial(keeper.run, self._config.content.save_interval_ns))
