"""The table of tools and runs: commands name only places that are filled in, and pins are of the tools' names."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.studies.outside import tools
from loadgen.studies.outside.counts import RunCounts, compared, unexplained
from loadgen.studies.outside.readings import Reading
from loadgen.studies.outside.tools import (
    AIPERF,
    GUIDELLM,
    PLACES,
    RUNS,
    TOOLS,
    VLLM,
    WRK,
    OutsideTool,
    PackageSource,
    ToolRun,
    folder_of,
)

ROOT = Path(tools.__file__).parents[3]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: folder_of(Path(), run).name)
def test_a_command_names_known_places_alone(run: ToolRun) -> None:
    assert not any("{" in each for each in run.command(**{name: name for name in PLACES}))
    assert run.tool in TOOLS


def test_no_two_runs_have_one_folder() -> None:
    assert len({folder_of(Path(), run) for run in RUNS}) == len(RUNS)


def test_every_tool_is_installed_by_the_projects_files() -> None:
    pins = (ROOT / "loadgen/studies/outside/requirements.txt").read_text().split()
    node_pins = (ROOT / "loadgen/studies/outside/npm.txt").read_text().split()
    programs = (ROOT / ".ci/outside-programs").read_text().splitlines()
    for tool in TOOLS:
        if tool.home is not None:
            assert "not there" in tool.why_absent(Path()) or tool.program(Path()) is not None
        elif tool.source is PackageSource.PYPI:
            assert any(pin.startswith(f"{tool.package}==") for pin in pins)
        elif tool.source is PackageSource.NPM:
            assert any(pin.startswith(f"{tool.package}@") for pin in node_pins)
        else:
            assert any(line.split()[:2] == [tool.name, tool.package] for line in programs)


def test_a_tool_that_is_not_installed_says_why(tmp_path: Path) -> None:
    assert AIPERF.program(tmp_path) is None
    assert "aiperf is not installed" in AIPERF.why_absent(tmp_path)
    (tmp_path / "unavailable-aiperf").write_text("ERROR: no matching distribution\n")
    assert AIPERF.why_absent(tmp_path) == "ERROR: no matching distribution"


def test_a_version_is_found_in_what_a_tool_prints() -> None:
    assert WRK.version_in("wrk debian/4.1.0-3+b2 [epoll] Copyright (C) 2012 Will Glozer", 1) == "4.1.0"
    assert AIPERF.version_in("aiperf 0.13.0", 0) == "0.13.0"
    assert VLLM.version_in("W1201 11:36:29.067000 26268 triton.py:53] not available\n0.32.0+cpu", 0) == "0.32.0"


@pytest.mark.parametrize(("text", "status"), [("usage", 0), ("ImportError in line 3.11", 1), ("0.13.0", None)])
def test_a_version_that_cannot_be_read_is_unknown(text: str, status: int | None) -> None:
    assert AIPERF.version_in(text, status) == "unknown"


def test_a_tool_that_is_installed_was_not_chosen(tmp_path: Path) -> None:
    program = tmp_path / "aiperf/bin/aiperf"
    program.parent.mkdir(parents=True)
    program.touch()
    assert AIPERF.why_absent(tmp_path) == "it was not chosen"


@pytest.mark.parametrize(
    ("tool", "told", "left_out", "counted", "unknown"),
    [
        (AIPERF, RunCounts(failed=0), RunCounts(), RunCounts(failed=6, not_found=6), []),
        (AIPERF, RunCounts(failed=0), RunCounts(), RunCounts(failed=7, not_found=6), ["failed"]),
        (AIPERF, RunCounts(failed=0), RunCounts(), RunCounts(failed=5, not_found=6), ["failed"]),
        (AIPERF, RunCounts(failed=0), RunCounts(), RunCounts(failed=6), ["failed"]),
        (AIPERF, RunCounts(prompt_tokens=9), RunCounts(prompt_tokens=5), RunCounts(prompt_tokens=14), []),
        (
            AIPERF,
            RunCounts(prompt_tokens=9),
            RunCounts(prompt_tokens=5),
            RunCounts(prompt_tokens=15),
            ["prompt_tokens"],
        ),
        (AIPERF, RunCounts(prompt_tokens=9), RunCounts(prompt_tokens=5), RunCounts(prompt_tokens=8), ["prompt_tokens"]),
        (GUIDELLM, RunCounts(71), RunCounts(1), RunCounts(72), []),
        (GUIDELLM, RunCounts(70), RunCounts(1), RunCounts(72), ["completed"]),
        (GUIDELLM, RunCounts(73), RunCounts(1), RunCounts(72), ["completed"]),
        (VLLM, RunCounts(120, failed=0), RunCounts(121), RunCounts(241, failed=4, not_found=4), []),
        (VLLM, RunCounts(119, failed=0), RunCounts(121), RunCounts(241, failed=4, not_found=4), ["completed"]),
        (WRK, RunCounts(2737), RunCounts(), RunCounts(0), []),
        (WRK, RunCounts(2737), RunCounts(), RunCounts(1), ["completed"]),
    ],
)
def test_a_known_reason_accounts_for_a_computed_difference(
    tool: OutsideTool, told: RunCounts, left_out: RunCounts, counted: RunCounts, unknown: list[str]
) -> None:
    for run in (each for each in RUNS if each.tool is tool):
        allowed = run.allows(Reading(told, left_out=left_out), counted)
        assert [each.name for each in unexplained(compared(told, counted), allowed)] == unknown
