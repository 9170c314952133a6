"""The commands' wrong uses, and that no part of a page takes the place of the whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.studies.data import Look
from loadgen.studies.main import STUDIES, results


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("skywalker --only fig9", "say with -o where to"),
        ("skywalker --only fig99 -o out", "no such experiment: fig99; there are: fig8; fig9"),
        ("placement --only sweep", "say with -o where to"),
        ("placement --only nothing -o out", "no such experiment: nothing; there are: workload, arena; "),
        ("placement --look", "write down first what is expected"),
        ("balanceroute --look", "write down first what is expected"),
        ("balanceroute --quick", "say with -o where to"),
        ("balanceroute --jobs 0", "range"),
        ("token-budget --quick", "say with -o where to"),
        ("eldr --quick", "say with -o where to"),
        ("eldr --fit -o out", "holds the recording"),
        ("live --only mixed", "say with -o where to"),
        ("live --set duration=1s", "say with -o where to"),
        (
            "live --only nothing -o out",
            "no such case: nothing; there are: agentic; agentic, half as many again; mixed; a large engine",
        ),
        ("live --set duration -o out", "'duration' is not KEY=VALUE"),
        ("live --rounds 0", "0 is not in the range"),
    ],
)
def test_wrong_use_ends_with_2_and_writes_nothing(
    arguments: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for looked_at in ("placement.command.LOOK", "balanceroute.command.ASIDE"):
        monkeypatch.setattr(f"loadgen.studies.{looked_at}", Look("", ""))
    done = CliRunner().invoke(results, arguments.split())
    assert (done.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert complaint in " ".join(done.output.split())


@pytest.mark.parametrize("arguments", [(), *((each.name,) for each in STUDIES)])
def test_the_help_tells_the_exit_codes(arguments: tuple[str, ...]) -> None:
    assert "Exit codes: 0 " in CliRunner().invoke(results, [*arguments, "--help"]).output
