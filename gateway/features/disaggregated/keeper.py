"""Keeps the predictor of one pool up to date: stores its history over a restart, and fits predictors to it. The work is
done off the event loop.

Sorting is done in a thread, and boosted trees are grown in a process of their own. A failure is logged, and the
predictor goes on with what it has until that is too old; then requests are placed without predictions.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import assert_never
from urllib.parse import quote

from structlog.typing import FilteringBoundLogger

from gateway.core.features.disaggregated.config import BalanceConfig
from gateway.core.features.disaggregated.predictors.arrays import PredictorArrays, PredictorKind, UnusableArrays
from gateway.core.features.disaggregated.predictors.exact_match import fit_exact_match
from gateway.core.features.disaggregated.predictors.history import Ended, History, Snapshot
from gateway.core.features.disaggregated.predictors.survival import fit_survival
from gateway.core.vocabulary import GatewayId, PoolName
from gateway.features.disaggregated.config import PredictionConfig
from gateway.features.disaggregated.files import (
    Artifact,
    artifact_of,
    read_artifact,
    read_history,
    write_history,
)
from gateway.features.disaggregated.gain import PredictionGain, gain_on_newest
from gateway.features.disaggregated.handing_over import Arrived, with_arrived
from gateway.state.processes import ProcessFailed, run_process
from mesh.clock import Clock
from mesh.state_files import StateUnusable
from mesh.threads import finish_in_thread

_SECOND_NS = 1_000_000_000

Take = Callable[[PredictorArrays, int, bool], None]
"""Callback that gets arrays, the time until which they may be used, and whether they foresee loads better than
expecting every request to stay. Raises UnusableArrays."""
Live = Callable[[], History | None]
"""Callback that returns the history that requests are added to, which is another object after it was restored; None
where there is none."""


class PredictorKeeper:
    """Predictor of one pool."""

    def __init__(
        self,
        gateway_id: GatewayId,
        pool: PoolName,
        folder: Path | None,
        config: PredictionConfig,
        *,
        balance: BalanceConfig,
        clock: Clock,
        log: FilteringBoundLogger,
        arrived: Callable[[], Sequence[Arrived]] = tuple,
    ) -> None:
        """`arrived` returns the pool's histories that came from other gateways: predictors are fitted to them too, and
        they are not stored."""
        named = f"{gateway_id}.{quote(pool, safe='')}"
        self._history_path = None if folder is None else folder / f"{named}.history.json"
        self._artifact_path = None if folder is None else folder / f"{named}.predictor.json"
        self._fitting_path = None if folder is None else folder / f"{named}.fitting.json"
        """File of the requests that trees are being grown from, for as long as that takes; one that a crash has left is
        removed at the next start."""
        self._config = config
        self._balance = balance
        self._clock = clock
        self._log = log.bind(pool=pool)
        self._arrived = arrived
        self._saved = self._fitted = -1
        self.fits = 0
        """Fits that were put into use; `failures` counts the fits that failed."""
        self.failures = 0
        self.problem = ""
        """Last failure; empty after a success."""
        self.gain: PredictionGain | None = None
        """Gain of the fit in use; None where nothing tells."""

    async def restore(self) -> History:
        """Read the stored history. One that cannot be read is logged and not used; the next
        save replaces it."""
        history = History(self._config.history_max)
        if self._fitting_path is not None:
            with suppress(OSError):
                await finish_in_thread(self._fitting_path.unlink, True)
        if self._history_path is not None:
            try:
                found = await finish_in_thread(read_history, self._history_path)
            except StateUnusable as error:
                self.problem = str(error)
                self._log.error("predictor_history_unusable", reason=self.problem)
            else:
                history = self._restored(found) if found is not None else history
        self._saved = history.added
        return history

    async def run(self, live: Live, take: Take) -> None:
        """Save and fit until cancelled; then save once more."""
        try:
            await self._take_kept(take)
            await self._refit_live(live, take)
            next_fit_ns = self._clock.now_ns() + self._config.refit_interval_ns
            while True:
                await asyncio.sleep(min(self._config.save_interval_ns, self._config.refit_interval_ns) / _SECOND_NS)
                await self._save_live(live)
                if self._clock.now_ns() >= next_fit_ns:
                    await self._refit_live(live, take)
                    next_fit_ns = self._clock.now_ns() + self._config.refit_interval_ns
        finally:
            await self._save_live(live)

    async def _save_live(self, live: Live) -> None:
        if (history := live()) is not None:
            await self.save(history)

    async def _refit_live(self, live: Live, take: Take) -> None:
        if (history := live()) is not None:
            await self.refit(history, take)

    async def save(self, history: History) -> None:
        """Save the history unless no request has ended since the last save. A failure is logged, and the next call
        tries again."""
        if self._history_path is None or history.added == self._saved:
            return
        snapshot = history.snapshot()
        try:
            await finish_in_thread(write_history, self._history_path, snapshot, self._wall_ahead_ns())
        except OSError as error:
            self.problem = str(error)
            self._log.error("predictor_history_not_persisted", reason=self.problem)
        else:
            self._saved = snapshot.added

    async def refit(self, history: History, take: Take) -> None:
        """Fit a predictor, unless there are too few requests or no new ones."""
        snapshot = history.snapshot()
        if arrived := self._arrived():
            snapshot = await finish_in_thread(with_arrived, snapshot, arrived, self._config.history_max)
        if self._config.artifact is None and not self._is_worth_fitting(snapshot):
            return
        try:
            artifact = await self._made(snapshot)
            gain = await finish_in_thread(_gain, snapshot, artifact.arrays, self._config, self._balance)
            self._hand_over(artifact, take, gain)
        except (ProcessFailed, StateUnusable, UnusableArrays, OSError) as error:
            self.failures += 1
            self.problem = str(error)
            self._log.error("predictor_fit_failed", reason=self.problem)
            return
        self.gain = gain
        self._fitted = snapshot.added
        self.fits += 1
        self.problem = ""
        self._log.info("predictor_fitted", kind=artifact.kind, requests=artifact.requests)

    def describe(self) -> dict[str, object]:
        gain = self.gain
        return {
            "kind": self._config.kind,
            "fits": self.fits,
            "failures": self.failures,
            "problem": self.problem,
            "predicted_error_steps": None if gain is None else gain.predicted_steps,
            "unpredicted_error_steps": None if gain is None else gain.unpredicted_steps,
        }

    # Parts

    def _restored(self, found: Snapshot) -> History:
        """History with its wall times converted to this process's clock."""
        ahead_ns = self._wall_ahead_ns()
        ended = [
            Ended(each.prompt_key, each.prompt_tokens, each.output_tokens, each.after, each.ended_ns - ahead_ns)
            for each in found.ended
        ]
        return History(self._config.history_max, ended, found.added)

    async def _take_kept(self, take: Take) -> None:
        """Use trees that were grown before a restart until there are new ones. Faults in them are ignored: they are
        replaced anyway."""
        if self._artifact_path is None or self._config.kind is not PredictorKind.LEARNED or self._config.artifact:
            return
        with suppress(StateUnusable, UnusableArrays, ProcessFailed):
            self._hand_over(await finish_in_thread(_artifact_at, self._artifact_path), take)

    def _hand_over(self, artifact: Artifact, take: Take, gain: PredictionGain | None = None) -> None:
        fresh_ns = artifact.fresh_for_ns(self._clock.wall_ns(), self._config.stale_after_ns)
        if not fresh_ns:
            raise ProcessFailed("what was fitted is too old")
        take(artifact.arrays, self._clock.now_ns() + fresh_ns, gain is not None and gain.is_better)

    def _is_worth_fitting(self, snapshot: Snapshot) -> bool:
        return len(snapshot.ended) >= self._config.requests_min and snapshot.added != self._fitted

    async def _made(self, snapshot: Snapshot) -> Artifact:
        config = self._config
        if config.artifact is not None:
            return await finish_in_thread(_artifact_at, config.artifact)
        match config.kind:
            case PredictorKind.SURVIVAL | PredictorKind.EXACT_MATCH:
                arrays = await finish_in_thread(_sorted, snapshot.ended, config)
            case PredictorKind.LEARNED:
                return await self._grown(snapshot)
            case _:
                assert_never(config.kind)
        return artifact_of(arrays, requests=len(snapshot.ended), wall_ns=self._clock.wall_ns(), fitted_by="the gateway")

    async def _grown(self, snapshot: Snapshot) -> Artifact:
        fitting, artifact = self._fitting_path, self._artifact_path
        if fitting is None or artifact is None:
            raise ProcessFailed("no state.folder is configured")
        command = [sys.executable, "-m", "nightside", "fit", "predictor", "--background", "--kind", self._config.kind]
        command += [
            "--horizon",
            str(self._balance.horizon_steps),
            "--history",
            str(fitting),
            "-o",
            str(artifact),
            "--held-out",
            "0",
        ]
        try:
            await finish_in_thread(write_history, fitting, snapshot, self._wall_ahead_ns())
            await run_process(command, self._config.refit_timeout_ns / _SECOND_NS)
        finally:
            await finish_in_thread(fitting.unlink, True)
        return await finish_in_thread(_artifact_at, artifact)

    def _wall_ahead_ns(self) -> int:
        return self._clock.wall_ns() - self._clock.now_ns()


def _artifact_at(path: Path) -> Artifact:
    artifact = read_artifact(path)
    if artifact is None:
        raise StateUnusable(f"{path}: there is no such file")
    return artifact


def _sorted(ended: Sequence[Ended], config: PredictionConfig) -> PredictorArrays:
    if config.kind is PredictorKind.EXACT_MATCH:
        return fit_exact_match(ended, config.key)
    return fit_survival(each.output_tokens for each in ended)


def _gain(
    snapshot: Snapshot, arrays: PredictorArrays, config: PredictionConfig, balance: BalanceConfig
) -> PredictionGain | None:
    """Gain on the newest requests, None where there are too few. What is sorted is fitted to the earlier ones alone for
    that, and artifacts are used as they are; trees that were grown here have seen the newest ones, and have no gain.
    Raises UnusableArrays."""
    if config.artifact is None and config.kind is PredictorKind.LEARNED:
        return None
    if len(snapshot.ended) < config.requests_min:
        return None

    def fit(earlier: Sequence[Ended]) -> PredictorArrays:
        return arrays if config.artifact is not None else _sorted(earlier, config)

    return gain_on_newest(snapshot, fit, balance)
