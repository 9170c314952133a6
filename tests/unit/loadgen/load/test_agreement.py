"""The arithmetic of the comparison, and the scenarios that it can play live."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from gateway.core.config import CoreConfig
from loadgen.engine.iteration_cost import LinearCost
from loadgen.engine.presets import PRESETS
from loadgen.figures import Figures
from loadgen.load.agreement import Overhead, agreement_document, first_token_ns, gap_between, simulated
from loadgen.load.agreement_cli import exit_code, show
from loadgen.load.local_mesh import check_live
from loadgen.shipped import scenarios
from loadgen.simulator.scenario import load_scenario
from mesh.faults import ConfigError

SCENARIO = scenarios()["agreement"]
LOADED = load_scenario(SCENARIO)


def figures(tokens_per_s: float, busy_share: float | None = 0.3) -> Figures:
    total = {
        "tokens_per_s": tokens_per_s,
        "requests_per_s": 1.0,
        "ttft_ms": {"p50": 100.0, "p90": 200.0},
        "forwarded_share": 0.0,
    }
    cpu = None if busy_share is None else {"mean_share": busy_share, "peak_share": 1.0, "own_share": None}
    regions = dict.fromkeys(LOADED.regions, total)
    return {"total": total, "regions": regions, "machine_cpu": cpu, "series": {}, "placements": []}


def row(document: Figures, metric: str) -> Figures:
    return next(each for each in document["metrics"] if each["metric"] == metric)


def test_the_gap_is_that_of_the_median_run_and_the_spread_is_told() -> None:
    live = [figures(tokens, busy) for tokens, busy in ((90, 0.3), (100, 0.6), (130, 0.1), (900, 0.61), (1, None))]
    document = agreement_document(LOADED, None, [figures(105), figures(111), figures(120)], live)
    tokens = row(document, "tokens_per_s")
    assert (tokens["live_median"], tokens["live_min"], tokens["live_max"]) == (100, 90, 130)
    assert (tokens["simulated_median"], tokens["simulated_min"], tokens["simulated_max"]) == (111, 105, 120)
    assert (tokens["gap"], tokens["agrees"]) == (0.11, False)
    assert (row(document, "forwarded_share")["gap"], row(document, "ttft_p90_ms")["agrees"]) == (0.0, True)
    assert [each["busy"] for each in document["machine"]] == [False, False, False, True, True]
    assert (document["live_runs"], document["quiet_runs"]) == (5, 3)
    assert document["regions"]["us-east-1"] == document["metrics"]


def test_it_is_written_down_with_which_settings_they_ran() -> None:
    def ran(**run: Any) -> Figures:
        changed = load_scenario(SCENARIO, {"runs": [run]})
        document: Figures = json.loads(json.dumps(agreement_document(changed, None, [], [])))
        return document

    paper = ran(placement={"explore_rule": "share"}, pushing={"in_band_credit": None})
    assert paper["settings"]["placement"]["explore_rule"] == "share"
    assert "explore_rule share" in paper["ran_with"]
    assert "no in-band credit" in paper["ran_with"]
    assert ran()["settings"]["pushing"]["in_band_credit"] == CoreConfig().pushing.in_band_credit
    assert f"explore_rule {CoreConfig().placement.explore_rule}" in ran()["ran_with"]


def test_what_is_printed_says_what_counted_for_nothing_and_with_what_it_ran(capsys: pytest.CaptureFixture[str]) -> None:
    show(agreement_document(LOADED, None, [figures(100)], [figures(100), figures(9, 0.9), figures(9, None)]))
    said = " ".join(capsys.readouterr().out.split())
    assert "30%, 90% (busy), unknown; busy is over 60%" in said
    assert "2 of 3 live runs found the machine busy, or could not tell, and count for nothing." in said
    assert "Both ran with policy cost, explore_rule " in said


@pytest.mark.parametrize(
    ("live", "code"),
    [
        ([figures(100)], 0),
        ([figures(50)], 1),
        ([figures(100), figures(5, 0.9), figures(5, 0.9)], 0),
        ([figures(50), figures(100, 0.9), figures(100, 0.9)], 1),
        ([figures(100, 0.9)], 3),
        ([], 3),
    ],
)
def test_only_runs_that_had_the_machine_for_themselves_decide_the_exit_code(live: list[Figures], code: int) -> None:
    assert exit_code(agreement_document(LOADED, None, [figures(100)], live)) == code


def test_without_a_live_run_nothing_agrees() -> None:
    assert {each["agrees"] for each in agreement_document(LOADED, None, [], [])["metrics"]} == {None}
    assert gap_between(1.0, 0.0) is None


def test_an_idle_engines_first_token_is_its_arithmetic() -> None:
    engine = PRESETS["llama-3.1-8b-l4"]
    assert isinstance(engine.cost, LinearCost)
    assert first_token_ns(engine, 100) == engine.cost.iteration_ns(sequences=1, prefill_tokens=100)


def test_the_simulator_is_given_what_a_hop_was_measured_to_cost() -> None:
    (near, *others), (far, *_) = (
        simulated(
            SCENARIO,
            {"duration": "9s"},
            LOADED.runs[0],
            Overhead(100_000_000, 100_000_000, (100_000_000 + extra, 102_000_000 + extra)),
        )
        for extra in (2_000_000, 202_000_000)
    )
    assert far["total"]["ttft_ms"]["p10"] - near["total"]["ttft_ms"]["p10"] > 150
    assert len({each["digest"] for each in (near, *others)}) == 2


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"runs.0.pushing": {"mode": "blind"}}, "only `overflow` can differ"),
        ({"regions.us-east-1.gateways": 2}, "regions.us-east-1: should have one gateway"),
        ({"faults": [{"kind": "replica_crash", "target": "us-east-1/0", "at": "1s", "lasts": "1s"}]}, "faults: "),
    ],
)
def test_what_cannot_be_brought_to_life_is_refused(changes: dict[str, Any], complaint: str) -> None:
    document = load_scenario(SCENARIO, changes)
    with pytest.raises(ConfigError, match=complaint):
        check_live(document, document.runs[0])


def test_the_scenario_can_be_brought_to_life() -> None:
    check_live(LOADED, LOADED.runs[0])
    assert yaml.safe_load(SCENARIO.read_text())["name"] == "agreement"
