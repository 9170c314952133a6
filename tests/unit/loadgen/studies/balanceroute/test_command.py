"""The whole command at a small size, and its wrong uses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from loadgen.studies.balanceroute.page import NAME
from loadgen.studies.main import results

TITLES = (
    "Aims",
    "Table 1",
    "Table 2",
    "Fig. 3",
    "The sweep",
    "Table 3",
    "How much is left",
    "What a tick costs",
    "When the KV cache is sent for",
    "What the gain depends on",
    "Kept aside",
)


def called(*arguments: str | Path) -> Result:
    return CliRunner().invoke(results, ["balanceroute", *map(str, arguments)])


@pytest.mark.nightly
def test_a_small_one_has_every_section(tmp_path: Path) -> None:
    (tmp_path / "decode.json").write_text(
        json.dumps({"plain": {"br_h, 8": {"p50_ms": 0.5, "p99_ms": 1.0, "admitted": 3.0}, "growth": {"br_h": 0.7}}})
    )
    arguments = ("--quick", "--look", "-o", tmp_path, "--cache", tmp_path / "cache", "--jobs", "1")
    done = called(*arguments)
    assert done.exit_code == 0, done.output
    page = (tmp_path / NAME).read_text()
    for title in TITLES:
        assert f"## {title}" in page, title
    assert "left out: ServeGen" in page
    assert "| br_h, 8 | 0.500 | 1.000 |" in page
    assert "nan" not in page
    named = {part.partition(")")[0] for part in page.split("](")[1:]}
    assert {file.name for file in tmp_path.glob("*.svg")} == {name for name in named if name.endswith(".svg")}
    rows = json.loads(called(*arguments, "--json").stdout)
    assert {"load", "policy", "gap", "tokens_per_s"} <= set(rows[0])


def test_ticks_that_are_no_json_are_told(tmp_path: Path) -> None:
    (tmp_path / "decode.json").write_text("{")
    done = called("--quick", "-o", tmp_path, "--cache", tmp_path / "cache", "--jobs", "1")
    assert (done.exit_code, "decode.json" in done.output) == (1, True)
