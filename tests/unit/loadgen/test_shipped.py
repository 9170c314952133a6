"""Shipped files are found by name, in any working directory."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from loadgen.load.main import load
from loadgen.planner.command import plan_command
from loadgen.shipped import scenarios
from loadgen.simulator.main import sim
from loadgen.simulator.scenario import load_scenario
from loadgen.traces.main import trace


def run(command: click.Command, *arguments: object) -> Result:
    return CliRunner().invoke(command, [*map(str, arguments)])


def test_a_scenario_is_played_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(sim, "skewed_day", "--set", "duration=2s", "--set", "warm_up=1s", "--jobs", 1, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["scenario"] == "skewed-day"


def test_a_file_of_that_name_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("skewed_day").write_text("nonsense: true\n")
    assert "nonsense" in run(sim, "skewed_day").output


@pytest.mark.parametrize("command", [sim, load])
def test_a_name_that_nothing_has_is_told_with_those_that_there_are(command: click.Command) -> None:
    done = run(command, "skewed_dya")
    assert done.exit_code == 2
    assert "there is no file skewed_dya" in done.output
    assert "skewed_day" in done.output


@pytest.mark.parametrize(
    "name", ["skewed_day", "day", "bad_day", "failover", "two_pools", "disaggregated_day", "moving_pools"]
)
def test_what_one_would_try_first_plays_the_default(name: str) -> None:
    """A region file without settings gives `nightside`."""
    assert load_scenario(scenarios()[name]).runs[0].name == "nightside"


def test_a_recorded_load_comes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    described = run(trace, "describe", "sample", "--json")
    assert described.exit_code == 0, described.output
    assert json.loads(described.stdout)["unreadable"] == 0
    planned = run(plan_command, "sample", "--rate", 200, "--formula")
    assert planned.exit_code == 0, planned.output
    assert "it saves" in planned.output


def test_an_unknown_format_suggests_a_command_that_exists(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text("nothing of the kind\n")
    done = run(plan_command, path)
    assert done.exit_code == 1
    assert "`nightside trace convert --format NAME` reads it" in done.output
    assert run(trace, "convert", "--help").output.count("--format") == 1
