"""A pool of a real prefill worker and a real decode worker, whose gateway is killed while streams run: another region's
gateway adopts it, and it returns.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core.vocabulary import ReplicaRole
from loadgen.demo.region_files import POOL, has_addresses_of_its_own
from loadgen.demo.scenario import DemoScenario, RegionScenario
from loadgen.studies.composition.cases import CASES, HOME, PlayedPace, play_scenario, scenario_of
from loadgen.studies.composition.page import figures_of
from tests.engines.conftest import Pair
from tests.engines.real import LEASE_S, RUNNING_MAX
from tests.engines.regions import replicas
from tests.support.core import MODEL

pytestmark = pytest.mark.timeout(900)

BR_H = CASES[0]
PACE = PlayedPace(stage_s=8, steady_users=2, within_s=180)
"""Few users and much time: real engines on a CPU serve few, and leave the gateways little of a small machine."""
BUSY_USERS = 5


def with_real_pool(scenario: DemoScenario, pair: Pair) -> DemoScenario:
    """The scenario with the pair as the pool of its region, whose emulated engine no file names."""
    regions = [replace(each, clients=BUSY_USERS) for each in scenario.regions]
    return replace(
        scenario,
        model=MODEL,
        regions=tuple(_with_pair(each, pair) if each.name == HOME else each for each in regions),
    )


def _with_pair(region: RegionScenario, pair: Pair) -> RegionScenario:
    members = replicas({"reader": pair.prefill.url, "writer": pair.decode.url})
    for member, role in zip(members, (ReplicaRole.PREFILL, ReplicaRole.DECODE), strict=True):
        member.update(pool=POOL, role=str(role))
    members[1]["group"] = BR_H.decode_group
    pool = {
        "name": POOL,
        "kind": "disaggregated",
        "connector": "nixl",
        "decode_batch_max": RUNNING_MAX,
        "lease": f"{LEASE_S}s",
        **BR_H.keys,
    }
    sections = {"replicas": members, "pools": [pool]}
    return replace(region, engines=1, prefill_engines=0, pool={}, decode_group="", sections=sections)


@pytest.mark.skipif(not has_addresses_of_its_own(), reason="one name cannot lead to two gateways of one address")
async def test_a_real_pool_is_adopted_and_returns_and_no_sound_stream_breaks(pair: Pair, tmp_path: Path) -> None:
    scenario = with_real_pool(scenario_of(BR_H, tmp_path), pair)
    before = await pair.decode.counters()
    figures = figures_of(await play_scenario(BR_H, scenario, tmp_path, PACE))
    print(figures)  # noqa: T201 - for the record of a run
    assert figures.broken_sound == ()
    assert figures.unended == 0
    assert {policy for stage in figures.stages for policy in stage.policies} == {"br_h"}
    assert min(figures.histories) >= 1, "of the adopter, and of the home"
    for stage in figures.stages:
        if stage.stage in ("at home", "adopted", "home again"):
            assert stage.load_max, f"requests run in the pool in the stage: {stage.stage}"
    after = await pair.decode.counters()
    assert after["vllm:generation_tokens_total"] > before["vllm:generation_tokens_total"]
    for engine in pair:
        await engine.until_holding(0)
        await engine.until_empty(3 * LEASE_S)
