"""A scenario that cannot be played live starts no process."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from loadgen.studies.main import results


def test_a_scenario_that_cannot_be_brought_to_life_ends_with_1(tmp_path: Path) -> None:
    changes = ["--set", "duration=never", "--only", "mixed", "--rivals", str(tmp_path), "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(results, ["live", *changes])
    assert done.exit_code == 1
    assert "duration" in done.output
    assert not (tmp_path / "out").exists()
