"""The demo as a new user runs it: real processes, runs of a few seconds, and no process or file left behind."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.demo.main import compare_runs
from loadgen.demo.scenario import DemoScenario, disaggregated_scenario
from loadgen.interrupts import EXIT_INTERRUPTED
from loadgen.names import NameResolver
from loadgen.workload import LengthSpread, WorkloadConfig
from mesh.clock import Clock

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is left behind is looked up in /proc")

LIVELY = WorkloadConfig(
    system_prompt_words=40,
    output_tokens=LengthSpread(median=40, sigma=0.3, minimum=20, maximum=80),
    think_s=LengthSpread(median=0.1, sigma=0.1, minimum=0.1, maximum=0.2),
)


@pytest.fixture(autouse=True)
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the demo's logs; every process it starts carries the path in its environment."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def left_behind(folder: Path) -> list[str]:
    """Command lines of running processes that a demo with this folder started, and files still in the folder."""
    found = [str(path) for path in folder.iterdir()]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
            if f"TMPDIR={folder}".encode() in environment:
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


@contextmanager
def nightside_demo(*options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "nightside", "demo", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], pattern: str) -> str:
    """Output up to the line that matches."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if re.search(pattern, line):
            return "".join(lines)
    raise AssertionError(f"ended without {pattern!r}:\n{''.join(lines)}")


def small_scenario(base: DemoScenario | None = None) -> DemoScenario:
    """Scenario with one small engine in each region, or a pair of prefill and decode engines, and more clients in the
    first region than it can serve at once.
    """
    base = base or DemoScenario()
    regions = tuple(
        replace(region, clients=clients, engines=1 + region.prefill_engines, slots=4)
        for region, clients in zip(base.regions, (14, 2, 1), strict=True)
    )
    return replace(base, regions=regions, preset="tiny", load_s=2.0, drain_s=8.0, workload=LIVELY)


@pytest.mark.nightly
def test_a_short_demo_forwards_overflow_within_policy_and_only_when_told_to(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status = compare_runs(small_scenario(), folder=tmp_path / "demo", as_json=True)
    captured = capsys.readouterr()
    document: dict[str, Any] = json.loads(captured.out)
    assert (status, document["problems"]) == (0, []), captured.err
    mesh, alone = document["runs"]
    for run in (mesh, alone):
        assert run["total"]["completed"] == run["total"]["requests"] > 0
        assert run["regions"]["us-east-1"]["prefix_hit_rate"] > 0
        assert run["regions"]["eu-west-1"]["local_share"] == 1
    assert mesh["regions"]["us-east-1"]["forwarded_share"] > 0
    assert alone["total"]["forwarded_share"] == 0
    assert "TTFT p90" in captured.err
    death = document["failover"]
    assert (death["gateway"], death["failures"]["unexplained"], death["unfinished"]) == ("gw-ap-northeast-1", 0, 0)
    assert death["requests"] == death["answered"] + sum(death["failures"].values())
    assert len([seen for seen in death["seen"].values() if seen is not None]) == 5, death["seen"]
    assert "what clients saw" in captured.err
    assert left_behind(tmp_path) == []


@pytest.mark.nightly
def test_overflow_lands_on_engines_that_share_their_work_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    scenario = small_scenario(disaggregated_scenario())
    status = compare_runs(scenario, folder=tmp_path / "demo", as_json=True)
    captured = capsys.readouterr()
    document: dict[str, Any] = json.loads(captured.out)
    assert (status, document["problems"]) == (0, []), captured.err
    assert "Of those in eu-west-1, 1 read prompts for the others." in captured.err
    mesh, _ = document["runs"]
    assert mesh["total"]["completed"] == mesh["total"]["requests"] > 0
    landed = {each["engine_region"] for each in mesh["answered"] if each["client_region"] == "us-east-1"}
    assert "eu-west-1" in landed


@pytest.mark.nightly
def test_what_serve_prints_works_as_printed(tmp_path: Path) -> None:
    with nightside_demo("--serve") as process:
        printed = read_until(process, "Ctrl-C")
        curl = re.search(r"^curl .*?\n\n", printed, re.DOTALL | re.MULTILINE)
        dig = re.search(r"^dig @(\S+) -p (\d+) (\S+) A \+subnet=(\S+) \+short$", printed, re.MULTILINE)
        python = re.search(r"^from openai .*?\n\n(?=Ctrl-C)", printed, re.DOTALL | re.MULTILINE)
        assert curl is not None
        assert python is not None
        assert dig is not None
        status = re.search(r"^controller: \.venv/bin/nightside (ctl .*)$", printed, re.MULTILINE)
        assert status is not None
        command = [sys.executable, "-m", "nightside", *status[1].split()]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "gw-ap-northeast-1" in told
        host, port, name, network = dig.groups()
        addresses = asyncio.run(NameResolver([(host, int(port))], network, Clock()).addresses(name))
        assert set(addresses) == {"127.77.1.1", "127.77.2.1"}, "the nearest gateway, and a further one"
        answer = subprocess.run(["bash", "-c", curl[0]], capture_output=True, text=True, check=True).stdout
        assert answer.startswith("HTTP/1.1 200")
        assert "x-nightside-region: us-east-1" in answer.lower()
        assert "data: [DONE]" in answer
        words = subprocess.run([sys.executable, "-c", python[0]], capture_output=True, text=True, check=True).stdout
        assert len(words.split()) == 20
        kill = re.search(r"^kill -9 \d+$", printed, re.MULTILINE)
        assert kill is not None
        subprocess.run(["bash", "-c", kill[0]], check=True)
        shown = read_until(process, "gw-ap-northeast-1: begun again")
        assert "gw-ap-northeast-1: process" in shown
        assert "was ended by SIGKILL" in shown
        assert "its replicas are served by others: after" in shown
        again = subprocess.run(["bash", "-c", curl[0]], capture_output=True, text=True, check=True).stdout
        assert again.startswith("HTTP/1.1 200")
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
    assert left_behind(tmp_path) == []


@pytest.mark.nightly
def test_an_interrupted_demo_reports_what_it_has(tmp_path: Path) -> None:
    with nightside_demo("--seconds", "60") as process:
        read_until(process, "^mesh .* of 60 s")
        process.send_signal(signal.SIGINT)
        rest = read_until(process, "stopped early")
        assert "TTFT p90" in rest
        assert process.wait() == EXIT_INTERRUPTED
    assert left_behind(tmp_path) == []


def test_a_demo_that_is_terminated_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    with nightside_demo() as process:
        read_until(process, "The same load goes out twice")
        process.send_signal(signal.SIGTERM)
        assert process.wait() == EXIT_INTERRUPTED
    assert left_behind(tmp_path) == []
