"""Only a soak that was played to its end replaces the one before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadgen.demo.processes import DemoFailure
from loadgen.studies.outside.outcomes import SOAK, SOAK_KEPT
from loadgen.studies.outside.soak import KeptSoak
from loadgen.studies.outside.soaking import keep_soak, play_soak
from loadgen.studies.outside.tools import AIPERF, ENVIRONMENTS

PLAYED = KeptSoak(60.0, "1", {}, "aiperf", 0, 1, 9.0, [], [], [], {}, [])


def test_a_soak_that_fails_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = ENVIRONMENTS / AIPERF.name / "bin" / AIPERF.name
    for file in (program, tmp_path / SOAK / SOAK_KEPT):
        file.parent.mkdir(parents=True)
        file.touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DemoFailure, match="`env` is not installed"):
        play_soak(tmp_path, 60.0, {}, lambda _: None)
    assert (tmp_path / SOAK / SOAK_KEPT).exists()


def test_a_whole_soak_replaces_the_one_before(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.jsonl").touch()
    keep_soak(PLAYED, tmp_path / "new", tmp_path / "old")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert {path.name for path in (tmp_path / "old").iterdir()} == {"new.jsonl", SOAK_KEPT}
    assert json.loads((tmp_path / "old" / SOAK_KEPT).read_text())["seconds"] == 60.0
