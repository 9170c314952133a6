"""The command's wrong uses, and that a part of the page is written to the given place."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.studies.main import results


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--only", "sweep"], "say with -o where to"),
        (["--only", "nothing", "-o", "out"], "no such experiment: nothing; there are: workload, arena; "),
        (["--look"], "write down first what is expected"),
    ],
)
def test_wrong_use_ends_with_2_and_writes_nothing(
    arguments: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("loadgen.studies.placement.command.EXPECTED", "")
    done = CliRunner().invoke(results, ["placement", *arguments])
    assert done.exit_code == 2
    assert complaint in " ".join(done.output.split())
    assert not list(tmp_path.iterdir())


def test_the_help_tells_the_exit_codes() -> None:
    for command in ("placement", "trial"):
        assert "Exit codes: 0 " in CliRunner().invoke(results, [command, "--help"]).output
