"""The command: which pages it refuses to write, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from loadgen.bench.relay.machine import describe_machine
from loadgen.studies.outside.command import RUNS_KEPT, outside
from loadgen.studies.outside.counts import RunCounts
from loadgen.studies.outside.outcomes import KEPT, SOAK, SOAK_KEPT, VERSIONS, KeptRun, OutsideSetup
from loadgen.studies.outside.soak import KeptSoak
from loadgen.studies.outside.tools import RUNS, TOOLS, folder_of

MACHINE = {"cpu": "a", "cores": 2, "memory_gib": 4, "kernel": "6", "python": "Python", "core": "plain Python"}


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(outside, arguments)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Page of the whole, in a folder in which nothing was played yet."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "docs/results/outside.md"


def keep(number: int) -> None:
    """Keep the first runs, whose reports are missing."""
    for run in RUNS[:number]:
        folder_of(RUNS_KEPT, run).mkdir(parents=True)
        kept = KeptRun(0, 1.0, 0.5, RunCounts(), (1, 1))
        (folder_of(RUNS_KEPT, run) / KEPT).write_text(json.dumps(asdict(kept)))
    setup = OutsideSetup({tool.name: "1.2" for tool in TOOLS}, MACHINE)
    (RUNS_KEPT / VERSIONS).write_text(json.dumps(asdict(setup)))


def keep_soak(seconds: float, machine: Mapping[str, object] = MACHINE) -> None:
    """Keep a soak in which AIPerf failed, and left no report."""
    soak = KeptSoak(seconds, "1.2", machine, "aiperf profile", 2, 0, 3.0, [], [], [], {}, ["gw-us"])
    (RUNS_KEPT / SOAK).mkdir(parents=True)
    (RUNS_KEPT / SOAK / SOAK_KEPT).write_text(json.dumps(asdict(soak)))


def test_the_whole_is_not_written_of_some_runs(page: Path) -> None:
    keep(len(RUNS) - 1)
    refused = invoke("--kept")
    assert refused.exit_code == 2
    assert "--kept without schemathesis, every operation makes another page" in refused.output
    assert not page.exists()


def test_some_runs_are_written_elsewhere_and_the_others_named(page: Path) -> None:
    keep(len(RUNS) - 1)
    done = invoke("--kept", "-o", "other")
    assert done.exit_code == 1
    assert "not run: schemathesis, every operation" in done.output
    assert "- schemathesis, every operation: it did not run." in Path("other/outside.md").read_text()


def test_the_whole_is_written_of_all_runs(page: Path) -> None:
    keep(len(RUNS))
    assert invoke("--kept").exit_code == 0
    assert "a, 2 cores" in page.read_text()


@pytest.mark.parametrize(("arguments", "reason"), [
    (["--soak", "60m", "--kept"], "give one of them"),
    (["--soak", "60m", "--only", "aiperf", "-o", "other"], "give one of them"),
    (["--soak", "20s"], "--soak makes another page"),
    (["--soak", "long"], "a duration such as"),
])  # fmt: skip
def test_a_soak_is_refused_before_it_is_played(arguments: list[str], reason: str, page: Path) -> None:
    refused = invoke(*arguments)
    assert (refused.exit_code, reason in refused.output) == (2, True)


def test_a_soak_for_the_whole_is_not_played_without_the_other_runs(page: Path) -> None:
    keep(len(RUNS) - 1)
    refused = invoke("--soak", "60m")
    assert refused.exit_code == 2
    assert "--soak without schemathesis, every operation makes another page" in refused.output


def test_a_soak_of_another_time_is_kept_off_the_whole(page: Path) -> None:
    keep(len(RUNS))
    keep_soak(50.0, describe_machine())
    for arguments in (["--kept"], []):
        refused = invoke(*arguments)
        assert refused.exit_code == 2
        assert "the soak of 50 s in build/outside makes another page" in refused.output
    assert not page.exists()
    assert invoke("--kept", "-o", "other").exit_code == 0


def test_a_soak_without_a_report_leaves_the_page_of_the_others(page: Path) -> None:
    keep(len(RUNS))
    keep_soak(3600.0)
    assert invoke("--kept").exit_code == 0
    assert "could not be read**: `FileNotFoundError" in page.read_text()
    assert "Its exit status was 2" in page.read_text()


def test_a_soak_alone_is_written_elsewhere(page: Path) -> None:
    keep_soak(50.0)
    assert invoke("--kept").exit_code == 2
    assert invoke("--kept", "-o", "other").exit_code == 1
    assert "## A soak of" in Path("other/outside.md").read_text()


def test_a_soak_without_its_tool_is_an_error(page: Path) -> None:
    keep(len(RUNS))
    failed = invoke("--soak", "60m")
    assert failed.exit_code == 1
    assert "aiperf is needed: the package aiperf is not installed" in failed.output


def test_kept_runs_are_not_chosen(page: Path) -> None:
    refused = invoke("--kept", "--only", "wrk", "-o", "other")
    assert (refused.exit_code, "give one of them" in refused.output) == (2, True)


def test_nothing_kept_is_an_error(page: Path) -> None:
    assert invoke("--kept").exit_code == 1
