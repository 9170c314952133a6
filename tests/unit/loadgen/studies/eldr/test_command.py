from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.studies.eldr.command import eldr


@pytest.mark.nightly
def test_a_small_page_has_every_section(tmp_path: Path) -> None:
    done = CliRunner().invoke(eldr, ["--quick", "-o", str(tmp_path), "--json", "--jobs", "1"])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "eldr.md").read_text()
    for title in ("What was aimed at", "Beside the balancers", "The band", "Together with BR-H", "Drift", "Constants"):
        assert f"## {title}\n" in page
    assert "**A small one**" in page
    assert "from the paper" in page
    told = json.loads(done.stdout)
    seeds = told["main"]["published, eldr, 40/s"]
    assert len(seeds) == 2
    assert seeds[0] != seeds[1]
    assert all(set(each["signatures"]) == {"used"} for each in seeds)
