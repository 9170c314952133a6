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
from gateway.control.histories import HistoryOffer
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
from gateway.core.features.disaggregated.predictors.history import History
from gateway.core.vocabulary import PREFIX_HASH_BYTES, PoolKind, PoolName, PoolSpec, RequestProfile
from gateway.features.disaggregated.config import PredictionConfig, prediction_of
from gateway.features.disaggregated.files import read_or_make_secret
from gateway.features.disaggregated.handing_over import handed_over, home_of, name_of, travelling
from gateway.features.disaggregated.keeper import PredictorKeeper
from gateway.features.extension import Host
from mesh.control.pool_history import PoolHistory
from mesh.state_files import StateUnusable
from mesh.supervisor import OwnedLoops

_KEY_BYTES = 8
_HANDED_MAX = 64
"""Most histories that wait for their pools; beyond it, the one that came first is dropped."""


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

    @property
    def key_id(self) -> str:
        """Name of the secret, which does not give it away: keys under another name mean nothing here."""
        return hashlib.blake2b(b"key_id", digest_size=_KEY_BYTES, key=self._secret).hexdigest()


class Predictors:
    """One keeper for each disaggregated pool, own or adopted."""

    def __init__(
        self,
        config: GatewayConfig,
        host: Host,
        loops: OwnedLoops,
        *,
        key_id: Callable[[], str],
        count: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`key_id` tells the name of the secret that keys of prompts are made with; `count` is called with what became
        of a history."""
        self._config = config
        self._key_id = key_id
        self._count = count
        self._host = host
        self._loops = loops
        self._settings: dict[PoolName, tuple[PredictionConfig, BalanceConfig]] = {}
        """Settings of each pool that is followed."""
        self._keepers: dict[PoolName, PredictorKeeper] = {}
        self._stops: dict[PoolName, Callable[[], object]] = {}
        self._restored: set[PoolName] = set()
        """Followed pools whose stored history the core has."""
        self._handed: dict[PoolName, PoolHistory] = {}
        """Histories that came from the gateway that served the pool before, of pools not restored yet."""

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
                self._restored.discard(name)
        for name in sorted(wanted.keys() - self._settings.keys()):
            self._settings[name] = wanted[name]
            self._begin(name, *wanted[name])

    def offers(self) -> list[HistoryOffer]:
        """Histories of the followed pools that this gateway serves."""
        pools = decode_pools_of(self._host.core)
        offers: list[HistoryOffer] = []
        for name in sorted(self._restored):
            pool = pools.get(name)
            if pool is not None and pool.workers:
                history = pool.predictor.history
                make = partial(self._travelling, history, name)
                offers.append(HistoryOffer(*home_of(name, self._config.gateway_id), history.added, make))
        return offers

    def _travelling(self, history: History, name: PoolName) -> PoolHistory:
        self._count("sent")
        home, pool = home_of(name, self._config.gateway_id)
        return travelling(history.snapshot(), self._config.gateway_id, home, pool, self._key_id())

    def take_history(self, history: PoolHistory) -> None:
        """Go on with a history without faults, once the one that is stored here has been restored."""
        name = name_of(history, self._config.gateway_id)
        self._handed.pop(name, None)
        self._handed[name] = history
        if len(self._handed) > _HANDED_MAX:
            del self._handed[next(iter(self._handed))]
        if name in self._restored:
            self._hand_over(name)

    def _hand_over(self, name: PoolName) -> None:
        """Tell the core of the history that has come for a pool."""
        handed = self._handed.pop(name, None)
        mine = decode_pools_of(self._host.core).history_of(name)
        if handed is None or mine is None:
            return
        now_ns = self._host.clock.now_ns()
        event = handed_over(
            handed, name, self._config.gateway_id, self._key_id(), is_empty=not len(mine), now_ns=now_ns
        )
        if event is None:
            return
        self._host.submit(event)
        self._count("taken")
        self._host.log.info("pool_history_taken", pool=name, recorded_by=handed.recorded_by, requests=len(event.ended))

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
            DecodeHistoryRestored(
                name, known.ended, known.added, config.history_max, balance.horizon_steps, known.first_away
            )
        )
        self._restored.add(name)
        self._hand_over(name)
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
