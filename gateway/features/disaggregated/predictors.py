"""Keeps the output-length predictors of disaggregated pools: their histories over a restart, and the models fitted to
them. It only wires: the core predicts, and a gateway whose predictors all fail keeps serving.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable
from functools import partial

from structlog.typing import FilteringBoundLogger

from gateway.config.sections import GatewayConfig
from gateway.core.features.disaggregated.config import BalanceConfig, decode_of
from gateway.core.features.disaggregated.events import DecodeHistoryRestored, PredictorFitted
from gateway.core.features.disaggregated.feature import decode_pools_of
from gateway.core.features.disaggregated.predictors.arrays import (
    ExactMatchArrays,
    LearnedArrays,
    PredictorArrays,
    SurvivalArrays,
    UnusableArrays,
)
from gateway.core.features.disaggregated.predictors.catalogue import make_estimator
from gateway.core.vocabulary import PREFIX_HASH_BYTES, PoolKind, PoolName, PoolSpec, RequestProfile
from gateway.features.disaggregated.config import PredictionConfig, prediction_of
from gateway.features.disaggregated.files import read_or_make_secret
from gateway.features.disaggregated.keeper import PredictorKeeper
from gateway.features.extension import Host
from mesh.state_files import StateUnusable
from mesh.supervisor import OwnedLoops

_KEY_BYTES = 8


class PromptKeys:
    """Keys that stand for prompts in histories on disk. Without the secret, a key does not confirm a guess at a
    prompt."""

    def __init__(self, config: GatewayConfig, log: FilteringBoundLogger) -> None:
        """Read the secret, or make one. A secret that cannot be kept is another one after a restart: prompts are then
        recognised by length only."""
        self._secret = secrets.token_bytes(32)
        folder = config.state.folder
        if folder is None:
            return
        try:
            self._secret = read_or_make_secret(folder / f"{config.gateway_id}.prompts.secret.json")
        except (StateUnusable, OSError) as error:
            log.exception("prompt_key_secret_not_persisted", reason=str(error))

    def of(self, profile: RequestProfile) -> bytes:
        """Key of a prompt; empty where the profile has no prefix hash."""
        last = profile.prefix[-PREFIX_HASH_BYTES:]
        return hashlib.blake2b(last, digest_size=_KEY_BYTES, key=self._secret).digest() if last else b""


class Predictors:
    """One keeper for each disaggregated pool, own or adopted."""

    def __init__(self, config: GatewayConfig, host: Host, loops: OwnedLoops) -> None:
        self._config = config
        self._host = host
        self._loops = loops
        self._settings: dict[PoolName, tuple[PredictionConfig, BalanceConfig]] = {}
        """Settings of each pool that is followed."""
        self._keepers: dict[PoolName, PredictorKeeper] = {}
        self._stops: dict[PoolName, Callable[[], object]] = {}

    def follow(self, pools: Iterable[PoolSpec]) -> None:
        """Follow the pools whenever they or their settings change. The core may know a pool already, or not yet: it
        gets the remembered history either way."""
        wanted = {
            pool.name: (prediction_of(pool), decode_of(pool).balance)
            for pool in pools
            if pool.kind is PoolKind.DISAGGREGATED
        }
        for name, settings in list(self._settings.items()):
            if wanted.get(name) != settings:
                self._stops.pop(name)()
                del self._keepers[name], self._settings[name]
        for name in sorted(wanted.keys() - self._settings.keys()):
            self._settings[name] = wanted[name]
            self._begin(name, *wanted[name])

    def describe(self) -> dict[PoolName, object]:
        return {name: keeper.describe() for name, keeper in self._keepers.items()}

    def refits(self) -> Iterable[tuple[PoolName, int, int]]:
        """Pools with their successful and failed fits."""
        return [(name, keeper.fits, keeper.failures) for name, keeper in self._keepers.items()]

    def _begin(self, name: PoolName, config: PredictionConfig, balance: BalanceConfig) -> None:
        keeper = self._keepers[name] = PredictorKeeper(
            self._config.gateway_id,
            name,
            self._config.state.folder,
            config,
            balance=balance,
            clock=self._host.clock,
            log=self._host.log,
        )
        self._stops[name] = self._loops.run("predictor", partial(self._run, keeper, name))

    async def _run(self, keeper: PredictorKeeper, name: PoolName) -> None:
        """Restore the history, and keep the predictor. Nothing is saved before: a pool that leaves meanwhile keeps what
        is stored."""
        config, balance = self._settings[name]
        known = (await keeper.restore()).snapshot()
        self._host.submit(
            DecodeHistoryRestored(name, known.ended, known.added, config.history_max, balance.horizon_steps)
        )
        await keeper.run(partial(decode_pools_of(self._host.core).history_of, name), partial(self._take, name))

    def _take(self, name: PoolName, arrays: PredictorArrays, until_ns: int, is_better: bool) -> None:
        """Tell the core of fitted arrays. Raises UnusableArrays, and has told it of none then."""
        horizon = decode_pools_of(self._host.core).horizon_of(name)
        if horizon is not None and not make_estimator(arrays).answers_for(horizon):
            raise UnusableArrays(f"it was fitted for another horizon than {horizon} steps")
        self._host.submit(
            PredictorFitted(
                name,
                until_ns,
                is_better=is_better,
                survival=arrays if isinstance(arrays, SurvivalArrays) else None,
                exact_match=arrays if isinstance(arrays, ExactMatchArrays) else None,
                learned=arrays if isinstance(arrays, LearnedArrays) else None,
            )
        )
