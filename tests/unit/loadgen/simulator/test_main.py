"""The command: its files, its output, and its exit codes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from rich.console import Console

from loadgen.simulator.main import _Milestones, sim
from tests.support.scenarios import small_document

SCENARIO = small_document(
    duration="5s",
    clients=[{"region": "us", "workload": "chat", "clients": 12}],
    runs=[{"system": "skywalker"}, {"system": "region_local"}],
)


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SCENARIO))
    return path


def test_progress_is_told_by_tenths_where_no_terminal_shows_a_bar() -> None:
    stream = io.StringIO()
    milestones = _Milestones(25, Console(file=stream))
    for _ in range(25):
        milestones.advance()
    assert stream.getvalue().splitlines() == [f"{done} of 25 done" for done in (3, 5, 8, 10, 13, 15, 18, 20, 23, 25)]
    terminal = io.StringIO()
    _Milestones(1, Console(file=terminal, force_terminal=True)).advance()
    assert terminal.getvalue() == ""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(sim, [*map(str, arguments)])


def test_results_and_report_are_written(scenario: Path, tmp_path: Path) -> None:
    done = run(scenario, "-o", tmp_path / "out", "--jobs", 1)
    assert done.exit_code == 0, done.output
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert [each["name"] for each in results["runs"]] == ["skywalker", "region_local"]
    assert results["digest"] in done.output
    assert "</html>" in (tmp_path / "out/report.html").read_text()


def test_json_is_what_would_be_written(scenario: Path, tmp_path: Path) -> None:
    printed = CliRunner().invoke(sim, [str(scenario), "--json", "--jobs", "1", "-o", str(tmp_path / "out")]).stdout
    assert json.loads(printed) == json.loads((tmp_path / "out/results.json").read_text())


def test_one_run_a_seed_and_a_setting(scenario: Path) -> None:
    arguments = [scenario, "--run", "region_local", "--json", "--jobs", 1]
    plain, seeded, smaller = (
        json.loads(run(*arguments, *more).stdout) for more in ((), ("--seed", 2), ("--set", "clients.0.clients=1"))
    )
    assert [each["name"] for each in plain["runs"]] == ["region_local"]
    assert plain["digest"] != seeded["digest"]
    assert smaller["runs"][0]["all_requests"] < plain["runs"][0]["all_requests"]


def test_a_sweep_is_a_grid(scenario: Path, tmp_path: Path) -> None:
    done = run(scenario, "--sweep", "seed=1,2", "--sweep", "clients.0.clients=1,2", "-o", tmp_path / "out", "--jobs", 2)
    assert done.exit_code == 0, done.output
    cells = json.loads((tmp_path / "out/sweep.json").read_text())["cells"]
    assert [cell["variant"] for cell in cells][:2] == ["seed=1, clients.0.clients=1", "seed=1, clients.0.clients=2"]
    assert len({cell["digest"] for cell in cells}) == 4
    assert (tmp_path / "out/003/report.html").exists()


def test_a_trace_has_the_digest_of_the_run(scenario: Path, tmp_path: Path) -> None:
    traced = run(scenario, "--run", "skywalker", "--trace", tmp_path / "story.txt")
    played = json.loads(run(scenario, "--run", "skywalker", "--json", "--jobs", 1).stdout)
    assert traced.output == f"digest {played['digest']}\n"
    assert "us/gw arrived" in (tmp_path / "story.txt").read_text()


def test_chaos_sums_up(tmp_path: Path) -> None:
    done = run("--chaos", "--runs", 3, "--seed", 1, "--jobs", 1, "--json")
    assert done.exit_code == 0, done.output
    summed = json.loads(done.stdout)
    assert summed["seeds"] == 3
    assert summed["findings"] == []
    assert summed["requests"] > 50
    traced = run("--chaos", "--runs", 1, "--seed", 1, "--trace", tmp_path / "story.txt")
    assert traced.output.startswith("seed 1: nothing found, digest ")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "give either a SCENARIO or --chaos"),
        (["SCENARIO", "--chaos"], "give either a SCENARIO or --chaos"),
        (["SCENARIO", "--run", "nope"], "no run named nope; there are: skywalker, region_local"),
        (["SCENARIO", "--set", "nope"], "'nope' is not KEY=VALUE"),
        (["SCENARIO", "--trace", "story.txt", "-o", "out"], "--trace does not go with --out"),
        (["SCENARIO", "--trace", "story.txt", "--json"], "--trace does not go with --json"),
        (["SCENARIO", "--trace", "story.txt", "--sweep", "seed=1,2"], "--trace does not go with --sweep"),
        (["SCENARIO", "--trace", "story.txt", "--jobs", "2"], "--trace does not go with --jobs"),
        (["SCENARIO", "--trace", "story.txt", "--ray", "auto"], "--trace does not go with --ray"),
        (["SCENARIO", "--trace", "story.txt", "--run", "skywalker", "--run", "region_local"], "give --run once"),
        (["SCENARIO", "--ray", "auto", "--jobs", "2"], "--ray does not go with --jobs"),
        (["SCENARIO", "--seed", "5", "--sweep", "seed=1,2"], "seed is given by both --seed and --sweep"),
        (["SCENARIO", "--set", "seed=3", "--seed", "5"], "seed is given by both --seed and --set"),
        (["SCENARIO", "--set", "slots=3", "--sweep", "slots=1,2"], "slots is given by both --set and --sweep"),
        (["SCENARIO", "--set", "slots=3", "--set", "slots=4"], "slots is given by both --set and --set"),
        (["SCENARIO", "--sweep", "slots=3", "--sweep", "slots=4,5"], "slots is given by both --sweep and --sweep"),
        (["SCENARIO", "--runs", "3"], "SCENARIO does not go with --runs"),
        (["SCENARIO", "--first"], "SCENARIO does not go with --first"),
        (["--chaos", "--set", "seed=1"], "--chaos does not go with --set"),
        (["--chaos", "--run", "skywalker", "--check"], "--chaos does not go with --run and --check"),
        (["--chaos", "--trace", "story.txt", "--json"], "--trace does not go with --json"),
        (["--chaos", "--trace", "story.txt", "--runs", "2"], "only with --runs 1"),
    ],
)
def test_wrong_use_ends_with_2(scenario: Path, arguments: list[str], complaint: str) -> None:
    done = run(*(str(scenario) if each == "SCENARIO" else each for each in arguments))
    assert done.exit_code == 2
    assert complaint in done.output


def test_a_wrong_scenario_ends_with_1_and_names_the_key(scenario: Path) -> None:
    done = run(scenario, "--set", "duration=ten", "--jobs", 1)
    assert done.exit_code == 1
    assert "small.yaml: duration: 'ten' is not a duration" in done.output


def test_without_a_replica_there_is_nobody_to_play(scenario: Path, tmp_path: Path) -> None:
    document = SCENARIO | {
        "regions": {name: {"jurisdiction": "US"} for name in ("us", "eu")},
        "faults": [{"kind": "gateway_crash", "target": "us/gw", "at": "1s", "lasts": "1s"}],
    }
    scenario.write_text(yaml.safe_dump(document))
    for more in (["--jobs", 1], ["--run", "skywalker", "--trace", tmp_path / "story.txt"]):
        done = run(scenario, *more)
        assert done.exit_code == 1
        assert "Error: small: regions: at least one should have `replicas`" in done.output


def test_the_help_tells_the_exit_codes() -> None:
    assert "Exit codes: 0 " in run("--help").output
