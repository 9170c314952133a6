"""The command measures nothing without the simulator's figures, nor another page over the committed one."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.studies.capacity.command import capacity


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("loadgen.studies.capacity.command.usable_cores", lambda: [0, 1])


@pytest.mark.parametrize(("arguments", "complaint"), [
    (["--quick"], "say with -o where to"), ([], "write it with `make bench-scale`"),
])  # fmt: skip
def test_wrong_use_measures_nothing(arguments: list[str], complaint: str) -> None:
    done = CliRunner().invoke(capacity, arguments)
    assert done.exit_code == 2
    assert complaint in " ".join(done.output.split())
    assert not Path("docs").exists()


@pytest.mark.parametrize(("figures", "complaint"), [
    ('{"measurements": []}', "no run of the largest fleet"), ("{", "scale.json: "),
])  # fmt: skip
def test_figures_without_the_largest_run_are_refused(figures: str, complaint: str) -> None:
    Path("scale.json").write_text(figures)
    done = CliRunner().invoke(capacity, ["--scale", "scale.json"])
    assert done.exit_code == 1
    assert complaint in " ".join(done.output.split())
    assert not Path("docs").exists()
