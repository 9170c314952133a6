from __future__ import annotations

import io
import json
import os
import threading
from pathlib import Path
from typing import ClassVar

from msgspec.structs import replace

from gateway.core.features.expert_locality.signature import Comparer
from gateway.core.vocabulary import GatewayId, PoolName
from gateway.features.expert_locality.config import ExpertLocalityConfig
from gateway.features.expert_locality.files import eldr_file
from gateway.features.expert_locality.fit.eldr import EldrRules, fit_eldr
from gateway.features.expert_locality.keeper import LocalityKeeper
from mesh.clock import Clock
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from tests.support.calibrations import calibration, write_calibration
from tests.support.locality import artifact_of

SECOND_NS = 1_000_000_000


class Told(Clock):
    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns


class Kept:
    """A keeper, its log, and the artifacts that it handed over."""

    def __init__(self, folder: Path, *, calibrated: bool = False) -> None:
        self.path = folder / "eldr.json"
        self.calibration = folder / "calibration.jsonl"
        self.clock = Told()
        self.taken: list[Comparer] = []
        self.stream = io.StringIO()
        calibration = self.calibration if calibrated else None
        config = ExpertLocalityConfig(artifact=self.path, calibration=calibration, refit_after_ns=60 * SECOND_NS)
        log = make_logger(LoggingConfig(format=LogFormat.JSON), GatewayId("us-1"), self.stream)
        self.keeper = LocalityKeeper(
            GatewayId("us-1"), PoolName("chat"), config, folder / "state", clock=self.clock, log=log
        )

    async def look(self, groups: int = 2, after_s: int = 0) -> int:
        """Let the keeper look; return the number of artifacts handed over so far."""
        self.clock.ns += after_s * SECOND_NS
        await self.keeper.look(groups, self.taken.append)
        return len(self.taken)

    def said(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.stream.getvalue().splitlines()]


async def test_an_artifact_is_taken_when_it_comes_and_when_it_has_changed(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    assert await kept.look() == 0
    assert await kept.look() == 0
    assert kept.said() == ["locality_artifact_rejected"], "what is wrong is said once"
    eldr_file(kept.path).write(artifact_of([[1, 0], [0, 1]]))
    assert await kept.look() == 1
    assert await kept.look() == 1
    os.utime(kept.path, ns=(1, 1))
    assert await kept.look() == 1, "touched, and the same"
    eldr_file(kept.path).write(artifact_of([[1, 0], [1, 1]]))
    assert await kept.look() == 2
    assert kept.keeper.describe()["clusters"] == 2


class _WatchedPath(type(Path())):  # type: ignore[misc] # the platform's own class
    """Path that records the threads in which its file is looked at."""

    threads: ClassVar[set[int]] = set()

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        self.threads.add(threading.get_ident())
        told: os.stat_result = super().stat(follow_symlinks=follow_symlinks)
        return told


async def test_a_disk_that_hangs_does_not_hold_up_requests(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    eldr_file(kept.path).write(artifact_of([[1, 0], [0, 1]]))
    kept.keeper._config = replace(kept.keeper._config, artifact=_WatchedPath(kept.path))
    assert await kept.look() == 1
    assert _WatchedPath.threads
    assert threading.get_ident() not in _WatchedPath.threads


async def test_a_spoilt_one_is_told_of_and_the_one_before_it_stays(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    eldr_file(kept.path).write(artifact_of([[1, 0], [0, 1]]))
    await kept.look()
    kept.path.write_bytes(kept.path.read_bytes()[:-9])
    assert await kept.look() == 1
    assert "is damaged" in str(kept.keeper.describe()["problem"])
    assert kept.keeper.describe()["clusters"] == 2


async def test_other_workers_have_it_fitted_anew_once_there_are_as_many_for_a_while(tmp_path: Path) -> None:
    kept = Kept(tmp_path, calibrated=True)
    given = calibration(24)
    write_calibration(kept.calibration, given)
    eldr_file(kept.path).write(fit_eldr(given, EldrRules(2, held_out=0)).artifact)
    assert await kept.look(2) == 1
    assert await kept.look(2, after_s=600) == 1, "as many as there are"
    assert await kept.look(3, after_s=1) == 1
    assert await kept.look(3, after_s=30) == 1, "not for long enough"
    assert await kept.look(3, after_s=60) == 2
    assert [each.clusters for each in kept.taken] == [2, 3]
    assert kept.keeper.describe()["refits"] == 1
    assert await kept.look(3, after_s=600) == 2


async def test_a_fit_that_fails_is_told_of_once_and_what_is_there_stays(tmp_path: Path) -> None:
    kept = Kept(tmp_path, calibrated=True)
    kept.calibration.write_text("no calibration\n")
    eldr_file(kept.path).write(artifact_of([[1, 0], [0, 1]]))
    await kept.look(3)
    assert await kept.look(3, after_s=61) == 1
    assert "calibration.jsonl:1" in str(kept.keeper.describe()["problem"])
    assert await kept.look(3, after_s=600) == 1
    assert kept.keeper.describe()["failures"] == 1, "not again and again"
    assert kept.said() == ["locality_artifact_applied", "locality_refit_failed"]
