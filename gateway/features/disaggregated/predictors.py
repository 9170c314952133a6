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
from gateway.core.features.disaggregated.predictors.history import History, Snapshot
from gateway.core.vocabulary import PREFIX_HASH_BYTES, PoolKind, PoolName, PoolSpec, RequestProfile
from gateway.features.disaggregated.config import PredictionConfig, prediction_of
from gateway.features.disaggregated.files import read_or_make_secret
from gateway.features.disaggregated.handing_over import Arrived, ArrivedHistories, home_of, name_of, travelling
from gateway.features.disaggregated.keeper import PredictorKeeper
from gateway.features.extension import Host
from mesh.control.pool_history import PoolHistory
from mesh.state_files import StateUnusable
from mesh.supervisor import OwnedLoops

_KEY_BYTES = 8
_ARRIVED_MAX = 64
"""Most pools with histories from elsewhere; beyond it, those of the pool that came first are dropped."""


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

    def __init__(
        self,
        config: GatewayConfig,
        host: Host,
        loops: OwnedLoops,
        count: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`count` is called with what became of a history that travels."""
        self._config = config
        self._count = count
        self._host = host
        self._loops = loops
        self._settings: dict[PoolName, tuple[PredictionConfig, BalanceConfig]] = {}
        """Settings of each pool that is followed."""
        self._keepers: dict[PoolName, PredictorKeeper] = {}
        self._stops: dict[PoolName, Callable[[], object]] = {}
        self._restored: set[PoolName] = set()
        """Followed pools whose stored history the core has."""
        self._arrived: dict[PoolName, ArrivedHistories] = {}
        """Histories that came before the assignment of their pools, and since."""

    def follow(self, pools: Iterable[PoolSpec]) -> None:
        """Follow the pools whenever they or their settings change. The core may know a pool already, or not yet: it
        gets the remembered history either way. What came from elsewhere for other pools is dropped."""
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
        self._arrived = {name: arrived for name, arrived in self._arrived.items() if name in wanted}

    def offers(self) -> list[HistoryOffer]:
        """Histories of the followed pools that this gateway serves, as recorded here."""
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
        return travelling(history.snapshot(), self._config.gateway_id, home, pool)

    def take_history(self, history: PoolHistory) -> None:
        """Take a history without faults. Predictors are fitted to the ones of other gateways; its own takes the place
        of one that is lost."""
        name = name_of(history, self._config.gateway_id)
        arrived = self._arrived.setdefault(name, ArrivedHistories())
        if len(self._arrived) > _ARRIVED_MAX:
            del self._arrived[next(iter(self._arrived))]
        is_new = arrived.take(history, self._host.clock.now_ns())
        if history.recorded_by == self._config.gateway_id:
            self._recover(name)
        elif is_new:
            self._tell_of(name, history)

    def _tell_of(self, name: PoolName, history: PoolHistory) -> None:
        self._count("taken")
        self._host.log.info("pool_history_taken", pool=name, recorded_by=history.recorded_by, requests=len(history))

    def _recover(self, name: PoolName) -> None:
        """Go on with what this gateway recorded in an earlier life and has lost since, once the stored history has
        been restored: a history that came back has more requests than the one here only then."""
        mine = decode_pools_of(self._host.core).history_of(name)
        arrived = self._arrived.get(name)
        if arrived is None or mine is None or name not in self._restored:
            return
        found = arrived.pop(self._config.gateway_id)
        if found is not None and found.history.added > mine.added:
            self._restore(name, found.snapshot())
            self._tell_of(name, found.history)

    def _restore(self, name: PoolName, known: Snapshot) -> None:
        config, balance = self._settings[name]
        self._host.submit(
            DecodeHistoryRestored(name, known.ended, known.added, config.history_max, balance.horizon_steps)
        )

    def _arrived_of(self, name: PoolName) -> tuple[Arrived, ...]:
        arrived = self._arrived.get(name)
        return () if arrived is None else arrived.all()

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
            arrived=partial(self._arrived_of, name),
        )
        self._stops[name] = self._loops.run("predictor", partial(self._run, keeper, name))

    async def _run(self, keeper: PredictorKeeper, name: PoolName) -> None:
        """Restore the history, and keep the predictor. Nothing is saved before: a pool that leaves meanwhile keeps what
        is stored."""
        self._restore(name, (await keeper.restore()).snapshot())
        self._restored.add(name)
        self._recover(name)
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
