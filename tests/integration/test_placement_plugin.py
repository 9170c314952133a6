"""The example plug-ins, built and installed without a network into an environment of their own, decide with the current
core: one in a scenario, and one, which places by prices, in a running gateway.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import aiohttp
import pytest

import gateway.core.placement.policy
from gateway.core.config import CoreConfig
from gateway.core.events import ConfigApplied
from gateway.core.kernel.config import PlacementConfig
from gateway.core.vocabulary import GatewayId
from gateway.records.journal import new_header
from gateway.request.driver import GatewayStep
from mesh.journal_lines import encode_header, encode_step
from mesh.steps import Step
from tests.fakes.engine import FakeEngine
from tests.support.core import EU, MODEL, US
from tests.support.gateways import CHAT
from tests.support.processes import Process, gateway_process, region_file

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs/examples/placement_plugin"
CARBON = ROOT / "docs/examples/carbon_plugin"
PRICES = """
version: 1
currency: EUR
regions:
  us-east-1: {replica_hour: 4, requests_per_replica: 16, kilowatts: 1, kilowatts_idle: 0.2, carbon_g_per_kwh: US_GRAMS}
  eu-west-1: {replica_hour: 4, requests_per_replica: 16, kilowatts: 1, kilowatts_idle: 0.2, carbon_g_per_kwh: 200}
"""
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

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment with the packages of this one, and the examples."""
    folder = tmp_path_factory.mktemp("plug-in")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    (site,) = (folder / "env/lib").glob("python*/site-packages")
    (site / "ours.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    python = folder / "env/bin/python"
    without = shutil.ignore_patterns("__pycache__")
    sources = [shutil.copytree(each, folder / each.name, ignore=without) for each in (EXAMPLE, CARBON)]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "--quiet"]
    subprocess.run([*map(str, pip), "--no-index", "--no-build-isolation", "--no-deps", *sources], check=True)
    return python


def run(python: Path, *arguments: str | Path, cwd: Path, status: int = 0) -> str:
    done = subprocess.run([python, *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr if status else done.stdout


def test_it_passes_the_test_that_its_author_runs(python: Path, tmp_path: Path) -> None:
    shutil.copy(EXAMPLE / "test_nightside_packed.py", tmp_path)
    assert "1 passed" in run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", ".", cwd=tmp_path)


def test_the_one_that_goes_by_prices_may_decide_says_the_command(python: Path, tmp_path: Path) -> None:
    asked = ("-m", "gateway.conformance.placement", "least_carbon", "--options", '{"load_max": 4}')
    assert run(python, *asked, cwd=tmp_path) == "least_carbon may decide\n"


async def test_a_gateway_that_runs_goes_where_least_is_emitted_and_says_so(
    python: Path, tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    """One replica at home and one in another region; at first the grid abroad is cleaner, later the grid at home."""
    prices = tmp_path / "prices.yaml"
    prices.write_text(PRICES.replace("US_GRAMS", "400"))
    places: dict[str, dict[str, str]] = {
        "home": {},
        "abroad": {"region": EU.region, "jurisdiction": EU.jurisdiction},
    }
    told = {
        "replicas": [{"id": name, "url": engine.url, "models": [MODEL], **place} for name, place in places.items()],
        "placement": {"policy": "least_carbon", "policy_version": "1.0.0", "policy_options": {"load_max": 4}},
        "prices": str(prices),
        "reload": {"watch": "10ms"},
    }
    file = region_file(tmp_path, "us-1", US, engine, **told)
    async with gateway_process(file, run=[str(python), "-m", "nightside", "gateway", "run", str(file)]) as gateway:
        await gateway.until_metric(session, lambda count: count == 2, "nightside_replicas_available")
        target, reason, emits = await placed(session, gateway)
        assert (target, reason) == ("abroad", "local_policy")
        assert emits["abroad"] * 2 == emits["home"]
        prices.write_text(PRICES.replace("US_GRAMS", "100"))
        await gateway.until_metric(session, lambda count: count > 0, "nightside_reloads_total", part="prices")
        assert (await placed(session, gateway))[0] == "home"


async def placed(session: aiohttp.ClientSession, gateway: Process) -> tuple[str, str, dict[str, float]]:
    """Target and reason of a request's placement, and the emissions estimated for each target, as `explain` reports
    them.
    """
    async with session.post(f"{gateway.http_url}/v1/chat/completions", json=CHAT) as answer:
        await answer.read()
        request_id = answer.headers["x-request-id"]
    async with session.get(f"{gateway.admin_url}/admin/explain/{request_id}") as page:
        (placement,) = (await page.json())["here"]["placements"]
    emits = {each["id"]: each["costs"]["further"]["carbon"]["amount"] for each in placement["considered"]}
    return placement["target"], placement["reason"], emits


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
