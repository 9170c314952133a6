from __future__ import annotations

import json
from dataclasses import replace

import pytest

from loadgen.figures import Figures
from loadgen.planner.cited import LLAMA_3_70B_A100, LLAMA_31_8B_L4
from loadgen.planner.fleet import SeatCounting
from loadgen.planner.lengths import RequestShape, lengths_of
from loadgen.planner.planning import NothingFits, PlanInputs, plan
from loadgen.planner.regions import region_load
from loadgen.planner.sources import Source
from loadgen.planner.verified import Trial

MIX = Source(
    "a mix", lengths_of([(RequestShape(500, 50), 0.9), (RequestShape(9_000, 600), 0.1)]), 100, 5.0, ("made up",)
)
SMALL = replace(LLAMA_3_70B_A100, kv_blocks=4_096, context_tokens_max=16_384, sequences_max=16)
"""Profile with KV cache for four windows of 16K, or sixteen of 4K."""


@pytest.fixture(scope="module")
def played() -> Figures:
    trial = Trial(instances=2, requests_min=200, requests_max=200, rounds=3)
    regions = (region_load("us", 60.0), region_load("eu", 40.0))
    return plan(SMALL, MIX, PlanInputs(100.0, (1_024, 12_000), (SeatCounting.RESERVED,), trial=trial, regions=regions))


def test_instances_are_counted_from_what_one_of_each_pool_carries(played: Figures) -> None:
    (fleet,) = played["fleets"]
    split = fleet["splits"][0]
    for pool in (fleet["homogeneous"]["pool"], split["short"], split["long"]):
        assert 0 < pool["carried_per_s"] <= pool["throughput_per_s"]
        assert pool["verified_instances"] == -(-pool["rate_per_s"] // pool["carried_per_s"])
        assert pool["played"]["preemptions"] == 0
        assert pool["played"]["late_share"] <= 0.05 / 0.9
        assert pool["played"]["slow_share"] <= 0.05 / 0.9
    assert split["verified_instances"] == split["short"]["verified_instances"] + split["long"]["verified_instances"]
    assert split["verified_usd_per_year"] == pytest.approx(split["verified_instances"] * 2 * 2.21 * 8_760)


def test_the_best_threshold_has_the_fewest_instances(played: Figures) -> None:
    (fleet,) = played["fleets"]
    counts = {each["threshold_tokens"]: each["verified_instances"] for each in fleet["splits"]}
    assert fleet["best_threshold_tokens"] == min(counts, key=lambda threshold: counts[threshold])
    saved = 1 - min(counts.values()) / fleet["homogeneous"]["verified_instances"]
    assert fleet["best_savings_share"] == pytest.approx(saved)
    assert f"{saved:.1%}" in fleet["advice"]


def test_a_threshold_above_everybody_leaves_no_long_pool(played: Figures) -> None:
    last = played["fleets"][0]["splits"][1]
    assert last["short_share"] == 1.0
    assert last["long"]["verified_instances"] == 0


def test_regions_are_sized_apart_and_together(played: Figures) -> None:
    told = played["fleets"][0]["regions"]
    assert set(told) == {"homogeneous", "split"}
    for design in told.values():
        assert set(design["by_region"]) == {"us", "eu"}
        assert design["pooled_instances"] <= design["region_local_instances"] <= design["pooled_instances"] + 2


def test_the_document_is_json_and_says_what_was_supposed(played: Figures) -> None:
    assert json.loads(json.dumps(played))["load"]["notes"] == ["made up"]
    assert played["profile"]["overrides"][0].startswith("4,096 KV blocks")


def test_formulas_alone_play_nothing() -> None:
    document = plan(SMALL, MIX, PlanInputs(100.0, (1_024,), trial=None, regions=(region_load("us", 100.0),)))
    assert [each["seats"] for each in document["fleets"]] == ["reserved", "paged"]
    reserved, paged = document["fleets"]
    assert reserved["homogeneous"]["verified_instances"] is None
    assert paged["homogeneous"]["instances"] < reserved["homogeneous"]["instances"]
    assert reserved["best_threshold_tokens"] == 1_024
    assert reserved["regions"]["split"]["pooled_instances"] == pytest.approx(reserved["splits"][0]["instances"], abs=2)


def test_requests_that_fit_into_no_window_are_told_and_not_planned_for() -> None:
    long = Source("l", lengths_of([(RequestShape(500, 50), 3.0), (RequestShape(20_000, 10), 1.0)]), 4)
    document = plan(SMALL, long, PlanInputs(100.0, (1_024,), (SeatCounting.RESERVED,), trial=None))
    assert document["load"]["too_long_share"] == 0.25
    assert document["fleets"][0]["homogeneous"]["pool"]["rate_per_s"] == 75.0


def test_what_cannot_be_planned_says_why() -> None:
    giant = Source("g", lengths_of([(RequestShape(200_000, 5), 1.0)]), 1)
    with pytest.raises(NothingFits, match="every request of g is longer than 16,384 tokens"):
        plan(SMALL, giant, PlanInputs(1.0, (1_024,), trial=None))
    with pytest.raises(NothingFits, match="hold no window of 65,536"):
        plan(replace(LLAMA_3_70B_A100, kv_blocks=None), MIX, PlanInputs(1.0, (1_024,), trial=None))


def test_what_has_no_price_has_no_cost() -> None:
    document = plan(LLAMA_31_8B_L4, MIX, PlanInputs(1.0, (1_024,), (SeatCounting.RESERVED,), trial=None))
    assert document["profile"]["price"] is None
    assert document["fleets"][0]["splits"][0]["usd_per_year"] is None
