"""The command refuses a folder in which files of another run would be taken for its own."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from loadgen.studies.wan.command import wan


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "partition-1").mkdir()
    result = CliRunner().invoke(wan, ["--keep", str(tmp_path)])
    assert result.exit_code == 2
    assert f"'{tmp_path}' is not empty" in result.output
