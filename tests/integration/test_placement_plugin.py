"""The example plug-in, installed without a network into an environment of its own, decides beside this very core."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import gateway.core.placement.policy
from gateway.core.config import CoreConfig, PlacementConfig
from gateway.core.events import ConfigApplied
from gateway.core.vocabulary import GatewayId
from gateway.ground.pump import Step
from gateway.ground.story import encode_header, encode_step
from gateway.records.journal import new_header
from gateway.request.driver import GatewayStep
from tests.support.core import US

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs/examples/placement_plugin"
SCENARIO = """
name: packed
duration: 5s
warm_up: 1s
drain: 20s
slots: 4
round_trips: ROUND_TRIPS
regions: {us-east-1: {jurisdiction: US, replicas: 3}, eu-west-1: {jurisdiction: EU, replicas: 1}}
workloads: {chat: {conversations: {}}}
clients: [{region: us-east-1, workload: chat, clients: 10}]
runs:
  - {name: default}
  - {name: packed, placement: {policy: packed, policy_options: {full_at: 3}}}
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment that has what ours has, and the example."""
    folder = tmp_path_factory.mktemp("plug-in")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    (site,) = (folder / "env/lib").glob("python*/site-packages")
    (site / "ours.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    python = folder / "env/bin/python"
    sources = shutil.copytree(EXAMPLE, folder / "sources", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "--quiet"]
    subprocess.run([*map(str, pip), "--no-index", "--no-build-isolation", "--no-deps", sources], check=True)
    return python


def run(python: Path, *arguments: str | Path, cwd: Path, status: int = 0) -> str:
    done = subprocess.run([python, *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr if status else done.stdout


def test_it_passes_the_test_that_its_author_runs(python: Path, tmp_path: Path) -> None:
    shutil.copy(EXAMPLE / "test_nightside_packed.py", tmp_path)
    assert "1 passed" in run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", ".", cwd=tmp_path)
    assert run(python, "-m", "gateway.conformance.placement", "packed", cwd=tmp_path) == "packed may decide\n"


def test_it_rests_on_the_core_that_these_tests_rest_on(python: Path, tmp_path: Path) -> None:
    program = "import gateway.core.placement.policy as p; print(p.__file__)"
    assert run(python, "-c", program, cwd=tmp_path).strip() == gateway.core.placement.policy.__file__


def test_a_scenario_names_it_and_it_fills_one_replica_first(python: Path, tmp_path: Path) -> None:
    (tmp_path / "packed.yaml").write_text(SCENARIO.replace("ROUND_TRIPS", str(ROOT / "loadgen/demo/round_trips.csv")))
    command = ("-m", "nightside", "sim", "packed.yaml", "--json")
    first, second = (json.loads(run(python, *command, cwd=tmp_path)) for _ in range(2))
    assert first["digest"] == second["digest"]
    reasons = {run["name"]: {each["reason"] for each in run["placements"]} for run in first["runs"]}
    assert "local_prefix" in reasons["default"]
    assert "local_policy" in reasons["packed"] and "local_prefix" not in reasons["packed"]  # noqa: PT018


def test_a_region_file_names_it_and_what_is_wrong_with_its_options_is_said(python: Path, tmp_path: Path) -> None:
    smallest = (ROOT / "docs/examples/smallest.yaml").read_text()
    program = (
        "import sys; from pathlib import Path; from gateway.config.reading import read_region_file; "
        "print(read_region_file(Path(sys.argv[1])).as_config().core.placement.policy_version)"
    )
    file = tmp_path / "us.yaml"
    file.write_text(f"{smallest}\nplacement: {{policy: packed}}\n")
    assert run(python, "-c", program, file, cwd=tmp_path) == "1.0.0\n"
    file.write_text(f"{smallest}\nplacement: {{policy: packed, policy_options: {{full_at: 0}}}}\n")
    said = run(python, "-c", program, file, cwd=tmp_path, status=1)
    assert "us.yaml: line 10: placement.policy_options: full_at should be a number of requests, 1 or more" in said


def test_a_replay_asks_for_the_version_that_the_journal_names(python: Path, tmp_path: Path) -> None:
    journal = tmp_path / "a.journal"
    placement = PlacementConfig("packed", "0.9")
    step: GatewayStep = Step(0, ConfigApplied(CoreConfig(placement)), [])
    header = new_header(GatewayId("us-1"), US, placement, seed=1, story="s")
    journal.write_bytes(encode_header(header) + encode_step(step))
    here = run(python, "-m", "nightside", "replay", journal, cwd=tmp_path, status=2)
    assert "placement.policy_version: of packed, 1.0.0 is installed and not 0.9" in here
    elsewhere = run(Path(sys.executable), "-m", "nightside", "replay", journal, cwd=ROOT, status=2)
    assert "placement.policy: 'packed' is none of cost, prefix" in elsewhere
