from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.core.features.disaggregated.config import BalanceConfig
from gateway.core.features.disaggregated.predictors.arrays import (
    LENGTHS_MAX,
    ExactMatchArrays,
    LearnedArrays,
    PredictorArrays,
    PredictorKind,
    SurvivalArrays,
    UnusableArrays,
)
from gateway.core.features.disaggregated.predictors.history import Ended, History
from gateway.core.vocabulary import GatewayId, PoolName
from gateway.features.disaggregated.config import PredictionConfig, prediction_faults
from gateway.features.disaggregated.files import artifact_file, artifact_of, read_history
from gateway.features.disaggregated.keeper import PredictorKeeper
from gateway.features.sections import PoolSections
from mesh.clock import Clock
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from tests.support.disaggregated import POOL

SECOND_NS = 1_000_000_000
CONFIG = PredictionConfig(kind=PredictorKind.SURVIVAL, requests_min=2)
HORIZON = 20


def fitting_files(folder: Path) -> list[Path]:
    """Files that trees are grown from."""
    return list(folder.glob("*.fitting.json"))


class TwoClocks(Clock):
    """Clock whose monotonic time began long after 1970, and differs in each process."""

    def __init__(self, started_ns: int = 0) -> None:
        self.ns = 0
        self.started_ns = started_ns

    def now_ns(self) -> int:
        return self.ns - self.started_ns

    def wall_ns(self) -> int:
        return 1_700_000_000 * SECOND_NS + self.ns


class Kept:
    """A keeper, its log, and the predictors that it handed over."""

    def __init__(self, folder: Path | None, config: PredictionConfig = CONFIG, clock: Clock | None = None) -> None:
        self.taken: list[tuple[PredictorArrays, int]] = []
        self.is_better: bool | None = None
        self.has_taken = asyncio.Event()
        self.stream = io.StringIO()
        log = make_logger(LoggingConfig(format=LogFormat.JSON), GatewayId("us-1"), self.stream)
        pool = PoolName("big/model")
        self.keeper = PredictorKeeper(
            GatewayId("us-1"),
            pool,
            folder,
            config,
            balance=BalanceConfig(horizon_steps=HORIZON, refresh_tokens=4),
            clock=clock or TwoClocks(),
            log=log,
        )
        self.history = History(config.history_max)

    def take(self, arrays: PredictorArrays, until_ns: int, is_better: bool) -> None:
        self.is_better = is_better
        self.taken.append((arrays, until_ns))
        self.has_taken.set()

    async def run_until_taken(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self.keeper.run(lambda: self.history, self.take))
            await self.has_taken.wait()
            running.cancel()

    async def refit(self) -> None:
        await self.keeper.refit(self.history, self.take)

    def said(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


async def begun(folder: Path | None, config: PredictionConfig = CONFIG, clock: Clock | None = None) -> Kept:
    """Return a keeper that has restored its history."""
    kept = Kept(folder, config, clock)
    kept.history = await kept.keeper.restore()
    return kept


def add(history: History, outputs: Sequence[int]) -> None:
    for output in outputs:
        history.add(Ended(3, 10, output, history.added, 5 * SECOND_NS))


async def test_a_history_survives_a_restart_on_another_clock(tmp_path: Path) -> None:
    first = await begun(tmp_path, clock=TwoClocks())
    add(first.history, [7, 8])
    await first.keeper.save(first.history)
    second = await begun(tmp_path, clock=TwoClocks(started_ns=100 * SECOND_NS))
    ended = second.history.snapshot().ended
    assert [(each.output_tokens, each.ended_ns) for each in ended] == [(7, -95 * SECOND_NS), (8, -95 * SECOND_NS)]
    assert second.history.added == 2


async def test_a_history_that_is_larger_than_it_may_be_now_keeps_its_newest(tmp_path: Path) -> None:
    first = await begun(tmp_path)
    add(first.history, [1, 2, 3])
    await first.keeper.save(first.history)
    second = await begun(tmp_path, replace(CONFIG, history_max=2))
    assert [each.output_tokens for each in second.history.snapshot().ended] == [2, 3]
    assert second.history.added == 3


@pytest.mark.parametrize("damage", [b"", b"{", b'{"kind":"decode history","version":99,"checksum":"","content":[]}'])
async def test_a_damaged_history_is_told_not_used_and_replaced(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "us-1.big%2Fmodel.history.json"
    path.write_bytes(damage)
    kept = await begun(tmp_path)
    assert len(kept.history) == 0
    assert (kept.said()[0]["event"], kept.said()[0]["level"]) == ("predictor_history_unusable", "error")
    assert str(path) in str(kept.keeper.describe()["problem"])
    await kept.keeper.save(kept.history)
    assert path.read_bytes() == damage
    add(kept.history, [9])
    await kept.keeper.save(kept.history)
    found = read_history(path)
    assert found is not None
    assert len(found.ended) == 1


async def test_without_a_folder_it_fits_and_keeps_nothing() -> None:
    kept = await begun(None)
    add(kept.history, [7, 8])
    await kept.keeper.save(kept.history)
    await kept.refit()
    assert kept.taken == [(SurvivalArrays((7, 8)), CONFIG.stale_after_ns)]


async def test_nothing_is_fitted_to_too_little_or_to_nothing_new() -> None:
    kept = await begun(None)
    await kept.refit()
    add(kept.history, [7])
    await kept.refit()
    assert kept.taken == []
    add(kept.history, [8])
    await kept.refit()
    await kept.refit()
    assert len(kept.taken) == 1
    assert kept.keeper.describe() == {
        "kind": "survival",
        "fits": 1,
        "failures": 0,
        "problem": "",
        "predicted_error_steps": None,
        "unpredicted_error_steps": None,
    }


async def test_it_fits_by_key_where_that_is_wanted() -> None:
    kept = await begun(None, replace(CONFIG, kind=PredictorKind.EXACT_MATCH))
    add(kept.history, [7, 8])
    await kept.refit()
    assert isinstance(kept.taken[0][0], ExactMatchArrays)


async def test_an_artifact_of_somebody_elses_is_read_again_each_time_and_refused_once_it_is_stale(
    tmp_path: Path,
) -> None:
    clock, path = TwoClocks(), tmp_path / "artifact.json"
    kept = await begun(None, replace(CONFIG, artifact=path), clock)
    await kept.refit()
    assert "no such file" in kept.keeper.problem
    fitted = artifact_of(SurvivalArrays((4,)), requests=1, wall_ns=clock.wall_ns(), fitted_by="")
    artifact_file(path).write(fitted)
    await kept.refit()
    assert (kept.taken, kept.keeper.problem) == ([(SurvivalArrays((4,)), CONFIG.stale_after_ns)], "")
    clock.ns += CONFIG.stale_after_ns
    await kept.refit()
    assert len(kept.taken) == 1
    assert (kept.keeper.problem, kept.keeper.failures) == ("what was fitted is too old", 2)


async def test_arrays_that_the_core_refuses_are_told_and_tried_again() -> None:
    kept = await begun(None)
    add(kept.history, [7, 8])

    def refuse(_arrays: PredictorArrays, _until_ns: int, _is_better: bool) -> None:
        raise UnusableArrays("not these")

    await kept.keeper.refit(kept.history, refuse)
    assert kept.keeper.problem == "not these"
    await kept.refit()
    assert len(kept.taken) == 1


async def test_trees_are_grown_in_a_process_of_their_own_and_kept_over_a_restart(tmp_path: Path) -> None:
    config = replace(CONFIG, kind=PredictorKind.LEARNED)
    kept = await begun(tmp_path, config)
    add(kept.history, [5, 200] * 100)
    await kept.refit()
    assert kept.keeper.problem == ""
    assert isinstance(kept.taken[0][0], LearnedArrays)
    assert kept.is_better is False
    assert kept.keeper.describe()["predicted_error_steps"] is None, "the trees have seen all that they could be asked"

    assert fitting_files(tmp_path) == [], "what they were grown from is not kept"
    left = tmp_path / "us-1.big%2Fmodel.fitting.json"
    left.write_text("what a crash leaves")

    again = await begun(tmp_path, config)
    assert not left.exists()
    await again.run_until_taken()
    assert [arrays for arrays, _ in again.taken] == [kept.taken[0][0]]


async def test_trees_that_take_too_long_are_given_up(tmp_path: Path) -> None:
    kept = await begun(tmp_path, replace(CONFIG, kind=PredictorKind.LEARNED, refit_timeout_ns=0))
    add(kept.history, [5, 200] * 100)
    await kept.refit()
    assert (kept.taken, kept.keeper.problem) == ([], "it took longer than 0 s")
    assert fitting_files(tmp_path) == []


async def test_trees_that_cannot_be_grown_are_told_in_the_words_of_the_command(tmp_path: Path) -> None:
    kept = await begun(tmp_path, replace(CONFIG, kind=PredictorKind.LEARNED))
    add(kept.history, [5, 5])
    await kept.refit()
    assert kept.taken == []
    assert "nothing to tell apart" in kept.keeper.problem


async def test_what_has_ended_is_saved_when_it_is_stopped(tmp_path: Path) -> None:
    kept = await begun(tmp_path)
    add(kept.history, [7, 8])
    await kept.run_until_taken()
    assert len((await begun(tmp_path)).history) == 2


async def test_a_disk_that_takes_nothing_is_told(tmp_path: Path) -> None:
    blocked = tmp_path / "folder"
    blocked.write_text("a file")
    kept = await begun(blocked / "below")
    add(kept.history, [7])
    await kept.keeper.save(kept.history)
    assert kept.keeper.problem


@pytest.mark.parametrize("kind", [PredictorKind.SURVIVAL, PredictorKind.EXACT_MATCH])
async def test_it_tells_whether_the_newest_requests_were_foreseen_from_the_earlier_ones(kind: PredictorKind) -> None:
    kept = await begun(None, replace(CONFIG, kind=kind))
    add(kept.history, [100] * 40)
    await kept.refit()
    assert kept.is_better
    assert kept.keeper.gain is not None
    drifted = await begun(None, replace(CONFIG, kind=kind))
    add(drifted.history, [8] * 30 + [400, 500] * 5)
    await drifted.refit()
    assert not drifted.is_better, "a fit to the newest requests as well would have known them"


@pytest.mark.parametrize(
    ("config", "faults"),
    [
        (CONFIG, []),
        (replace(CONFIG, history_max=LENGTHS_MAX + 1), ["prediction.history_max"]),
        (replace(CONFIG, requests_min=CONFIG.history_max + 1), ["prediction.requests_min"]),
        (replace(CONFIG, stale_after_ns=CONFIG.refit_interval_ns), ["prediction.stale_after"]),
    ],
)
def test_settings_that_do_not_go_together_are_refused_by_key(config: PredictionConfig, faults: list[str]) -> None:
    spec = replace(POOL, features=PoolSections(prediction=config).texts())
    assert [each.key for each in prediction_faults(spec)] == faults
