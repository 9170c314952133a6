"""The table of tools and runs: commands name only places that are filled in, and pins are of the tools' names."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.studies.outside import tools
from loadgen.studies.outside.tools import AIPERF, PLACES, RUNS, TOOLS, WRK, ToolRun, folder_of

ROOT = Path(tools.__file__).parents[3]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: folder_of(Path(), run).name)
def test_a_command_names_known_places_alone(run: ToolRun) -> None:
    assert not any("{" in each for each in run.command(**{name: name for name in PLACES}))
    assert run.tool in TOOLS
    assert set(run.reasons) <= {"completed", "left", "failed", "prompt_tokens", "output_tokens"}


def test_no_two_runs_have_one_folder() -> None:
    assert len({folder_of(Path(), run) for run in RUNS}) == len(RUNS)


def test_every_tool_is_installed_by_the_projects_files() -> None:
    pins = (ROOT / "loadgen/studies/outside/requirements.txt").read_text().split()
    programs = (ROOT / ".ci/outside-programs").read_text().splitlines()
    for tool in TOOLS:
        if tool.is_python:
            assert any(pin.startswith(f"{tool.package}==") for pin in pins)
        else:
            assert any(line.split()[:2] == [tool.name, tool.package] for line in programs)


def test_a_tool_that_is_not_installed_says_why(tmp_path: Path) -> None:
    assert AIPERF.program(tmp_path) is None
    assert "aiperf is not installed" in AIPERF.why_absent(tmp_path)
    (tmp_path / "unavailable-aiperf").write_text("ERROR: no matching distribution\n")
    assert AIPERF.why_absent(tmp_path) == "ERROR: no matching distribution"


def test_a_version_is_found_in_what_a_tool_prints() -> None:
    assert WRK.version_in("wrk debian/4.1.0-3+b2 [epoll] Copyright (C) 2012 Will Glozer") == "4.1.0"
    assert WRK.version_in("usage") == ""
