from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.studies.token_budget.command import token_budget


def written(folder: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in folder.rglob("*.json")}


PARTS = (
    "Table 2",
    "Figure 6",
    "Table 3",
    "Table 5",
    "tunes itself",
    "Pools and regions together",
    "Measured live.",
    "Not found, and left out: Azure 2024, conversation",
    "| LMSYS-derived, the paper | 265 |",
)


@pytest.mark.nightly
def test_a_small_page_is_written_whole_and_resumed(tmp_path: Path) -> None:
    """No recorded loads are used: the paper's two are synthesised."""
    (tmp_path / "token-budget-live.md").write_text("Measured live.\n")
    words = ["--quick", "-o", str(tmp_path), "--cache", str(tmp_path / "cache"), "--jobs", "1"]
    done = CliRunner().invoke(token_budget, words)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "token-budget.md").read_text()
    for part in PARTS:
        assert part in page
    assert "<svg" in (tmp_path / "token-budget-fig6.svg").read_text()
    kept = written(tmp_path / "cache")
    again = CliRunner().invoke(token_budget, words)
    assert again.exit_code == 0
    assert (tmp_path / "token-budget.md").read_text() == page
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "cache").rglob("*.json")} == kept, (
        "nothing is played again"
    )
