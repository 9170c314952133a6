"""Folders that a start of some tools' runs leaves alone."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from loadgen.studies.outside.outcomes import KEPT, SOAK, SOAK_KEPT, VERSIONS, OutsideSetup
from loadgen.studies.outside.playing import empty_for
from loadgen.studies.outside.tools import RUNS, folder_of


def kept_runs(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.glob(f"*/{KEPT}")}


def keep_all(folder: Path) -> None:
    for run in RUNS:
        folder_of(folder, run).mkdir(parents=True)
        (folder_of(folder, run) / KEPT).touch()
    (folder / "mesh").mkdir()
    (folder / SOAK).mkdir()
    (folder / SOAK / SOAK_KEPT).write_text(json.dumps({"machine": {"cores": 2}}))
    (folder / VERSIONS).write_text(json.dumps(asdict(OutsideSetup({"aiperf": "1.0", "wrk": "4.0"}, {"cores": 2}))))


def test_a_soak_and_runs_of_other_tools_stay(tmp_path: Path) -> None:
    keep_all(tmp_path)
    assert empty_for(tmp_path, ["wrk"], {"cores": 2}) == {"aiperf": "1.0"}
    assert kept_runs(tmp_path) == {folder_of(tmp_path, run).name for run in RUNS if run.tool.name != "wrk"}
    assert {path.name for path in tmp_path.iterdir()} == {*kept_runs(tmp_path), SOAK}


def test_a_soak_stays_by_its_own_machine(tmp_path: Path) -> None:
    keep_all(tmp_path)
    (tmp_path / VERSIONS).unlink()
    empty_for(tmp_path, ["wrk"], {"cores": 2})
    assert [path.name for path in tmp_path.iterdir()] == [SOAK]
    empty_for(tmp_path, ["wrk"], {"cores": 4})
    assert list(tmp_path.iterdir()) == []


def test_runs_of_another_machine_go(tmp_path: Path) -> None:
    keep_all(tmp_path)
    assert empty_for(tmp_path, ["wrk"], {"cores": 4}) == {}
    assert list(tmp_path.iterdir()) == []


def test_an_absent_folder_is_made(tmp_path: Path) -> None:
    assert empty_for(tmp_path / "outside", ["wrk"], {}) == {}
    assert (tmp_path / "outside").is_dir()
