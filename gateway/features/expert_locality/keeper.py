"""Keeps the expert locality of one pool up to date: looks for changes of its artifact, and fits another one when the
number of groups of decode workers has changed. The work is done off the event loop.

A failure is logged, and the pool keeps the artifact that it has; without one, requests join the shortest queue.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from structlog.typing import FilteringBoundLogger

from gateway.core.features.expert_locality.signature import Comparer
from gateway.core.vocabulary import GatewayId, PoolName
from gateway.features.expert_locality.config import ExpertLocalityConfig
from gateway.features.expert_locality.files import read_comparer
from gateway.state.processes import ProcessFailed, run_process
from mesh.clock import Clock
from mesh.state_files import StateUnusable
from mesh.threads import finish_in_thread

_SECOND_NS = 1_000_000_000

Take = Callable[[Comparer], None]
Groups = Callable[[], int]
"""Callback that returns the number of groups of decode workers; 0 where the pool is not at this gateway."""
_Stamp = tuple[int, int, int]


class LocalityKeeper:
    """Expert locality of one pool."""

    def __init__(
        self,
        gateway_id: GatewayId,
        pool: PoolName,
        config: ExpertLocalityConfig,
        folder: Path | None,
        *,
        clock: Clock,
        log: FilteringBoundLogger,
    ) -> None:
        """Configure the keeper. `folder` is for artifacts that are fitted here; None where none are kept."""
        self._config = config
        self._own = None if folder is None else folder / f"{gateway_id}.{quote(pool, safe='')}.eldr.json"
        self._clock = clock
        self._log = log.bind(pool=pool)
        self._stamp: _Stamp | None = None
        """Stamp of the artifact file when it was last looked at."""
        self._taken: Comparer | None = None
        self._groups = 0
        self._since_ns = 0
        """Time since which there are `_groups` groups."""
        self._tried = 0
        """Number of groups that a fit was last tried for, whether or not it succeeded."""
        self.refits = 0
        self.failures = 0
        self.problem = ""
        """Last failure; empty after a success."""

    async def run(self, groups: Groups, take: Take) -> None:
        """Look for changes until cancelled."""
        while True:
            await self.look(groups(), take)
            await asyncio.sleep(self._config.look_interval_ns / _SECOND_NS)

    async def look(self, groups: int, take: Take) -> None:
        """Take a changed artifact, and fit another one where that is due."""
        await self._look_at_artifact(take)
        now_ns = self._clock.now_ns()
        if groups != self._groups:
            self._groups, self._since_ns = groups, now_ns
        if self._is_refit_due(now_ns):
            await self._refit(groups, take)

    def describe(self) -> dict[str, object]:
        taken = self._taken
        return {
            "artifact": "" if taken is None else taken.digest,
            "clusters": 0 if taken is None else taken.clusters,
            "model": "" if taken is None else taken.shape.model,
            "refits": self.refits,
            "failures": self.failures,
            "problem": self.problem,
        }

    # Parts

    async def _look_at_artifact(self, take: Take) -> None:
        try:
            stamp = await finish_in_thread(_stamp_of, self._config.artifact)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            comparer = await finish_in_thread(read_comparer, self._config.artifact)
        except (StateUnusable, OSError) as error:
            if self._is_new(str(error)):
                self._log.error("locality_artifact_rejected", reason=self.problem)
            return
        self._tried = 0
        self._take(comparer, take)

    def _take(self, comparer: Comparer, take: Take) -> None:
        self.problem = ""
        if self._taken is None or self._taken.digest != comparer.digest:
            self._taken = comparer
            take(comparer)
            self._log.info("locality_artifact_applied", clusters=comparer.clusters)

    def _is_refit_due(self, now_ns: int) -> bool:
        if self._config.calibration is None or self._own is None or not self._groups:
            return False
        clusters = 0 if self._taken is None else self._taken.clusters
        is_settled = now_ns - self._since_ns >= self._config.refit_after_ns
        return is_settled and self._groups not in (clusters, self._tried)

    async def _refit(self, groups: int, take: Take) -> None:
        calibration, own = self._config.calibration, self._own
        assert calibration is not None, "checked before"
        assert own is not None, "checked before"
        self._tried = groups
        command = [sys.executable, "-m", "nightside", "fit", "eldr", "--background"]
        command += ["--calibration", str(calibration), "--workers", str(groups), "-o", str(own)]
        if self._taken is not None:
            command += ["--previous", str(self._config.artifact)]
        try:
            await run_process(command, self._config.refit_timeout_ns / _SECOND_NS)
            comparer = await finish_in_thread(read_comparer, own)
        except (ProcessFailed, StateUnusable, OSError) as error:
            self.failures += 1
            if self._is_new(str(error)):
                self._log.error("locality_refit_failed", reason=self.problem)
            return
        self.refits += 1
        self._take(comparer, take)

    def _is_new(self, problem: str) -> bool:
        """Record a problem, and return whether it differs from the last one: a problem is logged once."""
        before, self.problem = self.problem, problem
        return problem != before


def _stamp_of(path: Path) -> _Stamp:
    """Stamp of a file that changes with its content. Raises OSError."""
    told = path.stat()
    return told.st_mtime_ns, told.st_size, told.st_ino
