"""`nightside results live` with next to no load: the mesh, a small router of the tests, and routers that are not
installed.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from loadgen.bench.relay.rivals import VLLM_ROUTER
from loadgen.studies.placement.live.cases import cases
from loadgen.studies.placement.live.playing import Live
from loadgen.studies.placement.live.systems import systems

ROUTER = Path(__file__).parents[1] / "fakes/router.py"
TINY = {
    "preset": "tiny",
    "duration": "3s",
    "warm_up": "500ms",
    "drain": "20s",
    "workloads.session.conversations.think_s.median": 0.05,
    "workloads.session.conversations.system_prompt_words": 60,
    "workloads.session.conversations.turns.maximum": 8,
    "workloads.session.conversations.question_words.maximum": 60,
} | {f"clients.{number}.clients": 2 for number in range(3)}


def program(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


@pytest.fixture
def rivals(tmp_path: Path) -> Path:
    """Folder in which one of the routers is installed, and the others are missing."""
    folder = tmp_path / "rivals"
    router = shlex.join([sys.executable, str(ROUTER)])
    program(folder / "vllm-router/bin/vllm-router", f'exec {router} "$@"')
    (folder / "vllm-router/version").write_text("9.9\n")
    return folder


@pytest.mark.nightly
def test_ours_and_a_router_are_asked_the_same_and_who_is_missing_is_told(rivals: Path, tmp_path: Path) -> None:
    changes = [f"--set={key}={value}" for key, value in TINY.items()]
    options = ["--only=agentic", "--rounds=1", f"--rivals={rivals}", f"--out={tmp_path}", "--json"]
    command = [sys.executable, "-m", "nightside", "results", "live", *options, *changes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [run["system"] for run in document["runs"]] == ["nightside", "vllm-router"]
    for run in document["runs"]:
        total = run["total"]
        assert total["completed"] == total["requests"] > 0
        assert total["failed"] == 0
        assert total["cached_share"] > 0
        assert total["ttft_ms"]["p90"] >= total["ttft_ms"]["p50"] > 0
        assert run["machine_cpu"]["own_share"] > 0
    assert document["not_measured"].keys() == {"smg", "sglang-router"}
    page = (tmp_path / "placement_live.md").read_text()
    assert "|  | nightside | vllm-router |" in page
    assert "`vllm-router`: 9.9: " in page
    assert "`sglang-router`: not available" in page
    assert "agentic, round 1: nightside" in done.stderr


@pytest.mark.nightly
async def test_a_router_that_ends_is_a_fault_and_its_words_are_kept(rivals: Path, tmp_path: Path) -> None:
    program(rivals / "vllm-router/bin/vllm-router", "echo no such option >&2; exit 3")
    agentic, *_ = cases(None, None, TINY)
    vllm = next(each for each in systems(rivals) if each.relay is VLLM_ROUTER)
    live = Live([agentic], [vllm], 1, 1, tmp_path / "runs", Console(quiet=True))
    await live.play()
    assert live.runs == []
    (fault,) = live.faults
    assert "1 of 1: agentic, round 1: vllm-router: " in fault
    assert "status 3" in fault
    assert "no such option" in fault


@pytest.mark.slow
async def test_a_run_without_an_answer_counts_nowhere_and_says_why(rivals: Path, tmp_path: Path) -> None:
    agentic, *_ = cases(None, None, {**TINY, "workloads.session.conversations.system_prompt_words": 9_000})
    vllm = next(each for each in systems(rivals) if each.relay is VLLM_ROUTER)
    live = Live([agentic], [vllm], 1, 1, tmp_path / "runs", Console(quiet=True))
    await live.play()
    assert live.runs == []
    (fault,) = live.faults
    assert "nothing was answered" in fault
    assert "maximum context length" in fault
