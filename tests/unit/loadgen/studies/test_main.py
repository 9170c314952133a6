"""The command's wrong uses, and that no part of the page takes the place of the whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.studies.main import results


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--only", "fig9"], "say with -o where to"),
        (["--only", "fig99", "-o", "out"], "no such experiment: fig99; there are: fig8; fig9"),
    ],
)
def test_wrong_use_ends_with_2_and_writes_nothing(
    arguments: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(results, ["skywalker", *arguments])
    assert done.exit_code == 2
    assert complaint in " ".join(done.output.split())
    assert not list(tmp_path.iterdir())


def test_the_help_tells_the_exit_codes() -> None:
    for arguments in (["--help"], ["skywalker", "--help"]):
        assert "Exit codes: 0 " in CliRunner().invoke(results, arguments).output
