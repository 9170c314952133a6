"""The command refuses to write another page over the committed one."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.studies.long.command import long_run


@pytest.mark.parametrize(("arguments", "complaint"), [
    (["--hours", "1"], "say with -o where to"), (["--hours", "0"], "not in the range"),
])  # fmt: skip
def test_wrong_use_writes_nothing(
    arguments: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(long_run, arguments)
    assert (done.exit_code, [*tmp_path.iterdir()]) == (2, [])
    assert complaint in " ".join(done.output.split())
