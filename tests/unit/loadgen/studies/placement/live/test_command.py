"""The command's wrong uses, which write no file and start no process."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.studies.main import results


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--only", "mixed"], "say with -o where to"),
        (["--set", "duration=1s"], "say with -o where to"),
        (
            ["--only", "nothing", "-o", "out"],
            "no such case: nothing; there are: agentic; agentic, half as many again; mixed; a large engine",
        ),
        (["--set", "duration", "-o", "out"], "'duration' is not KEY=VALUE"),
        (["--rounds", "0"], "0 is not in the range"),
    ],
)
def test_wrong_use_ends_with_2_and_writes_nothing(
    arguments: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(results, ["live", *arguments])
    assert done.exit_code == 2
    assert complaint in " ".join(done.output.split())
    assert not list(tmp_path.iterdir())


def test_a_scenario_that_cannot_be_brought_to_life_ends_with_1(tmp_path: Path) -> None:
    changes = ["--set", "duration=never", "--only", "mixed", "--rivals", str(tmp_path), "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(results, ["live", *changes])
    assert done.exit_code == 1
    assert "duration" in done.output
    assert not (tmp_path / "out").exists()


def test_the_help_tells_the_exit_codes() -> None:
    assert "Exit codes: 0 " in CliRunner().invoke(results, ["live", "--help"]).output
