"""The page reports the figures, and nothing else."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.config.sections import ProbeConfig
from gateway.core.config import CoreConfig
from gateway.core.kernel.config import PeerAvailability, PlacementPolicy
from loadgen.bench.scale.main import ScaleMeasurement, document_of
from loadgen.bench.scale.measure import ScaleReading
from loadgen.bench.scale.points import POINTS
from loadgen.bench.scale.provenance import provenance_here
from loadgen.figures import Figures
from loadgen.load.agreement import agreement_document
from loadgen.simulator.scenario import RunSection, load_scenario
from loadgen.studies.cells import Results
from loadgen.studies.claims import CLOSE
from loadgen.studies.experiments import SCENARIOS, all_cells
from loadgen.studies.skywalker.best_hits import BestHits
from loadgen.studies.skywalker.page import page_of
from loadgen.studies.skywalker.plan import (
    ALL_OF_THEM,
    AXES,
    GKE,
    PAPER_FLEETS,
    PAPER_PLACEMENT,
    PAPER_PUSHING,
    REGION_LOCAL,
    REGIONS,
    SKYWALKER,
    UNSEEN,
    UNSEEN_SEEDS,
    VARIANTS,
    WORTH,
    WORTH_AND_CREDIT,
    SettingAxis,
    SkyWalkerEvaluation,
    Traces,
    evaluation,
    find_traces,
)
from mesh.yaml_file import read_yaml
from tests.support.core import under

PLAN = evaluation(Traces(), seeds=(1, 2, 3))
QUANTILES = ("p10", "p25", "p50", "p75", "p90", "p99", "mean")


def figures(rate: float, ttft_ms: float, of_regions_ms: float = 100.0) -> Figures:
    total = {
        "requests_per_s": rate,
        "tokens_per_s": rate,
        "ttft_ms": dict.fromkeys(QUANTILES, ttft_ms),
        "duration_ms": dict.fromkeys(QUANTILES, 10 * ttft_ms),
        "prefix_hit_rate": 0.5,
        "forwarded_share": 0.1,
        "outstanding_max_to_mean": 1.5,
        "outstanding_mean": 20.0,
        "failed": 0,
    }
    region = total | {"ttft_ms": dict.fromkeys(QUANTILES, of_regions_ms)}
    return {"total": total, "regions": dict.fromkeys(REGIONS, region)}


def nothing() -> Figures:
    """Figures of a run that answers no request."""
    total = figures(0.0, 100.0)["total"] | dict.fromkeys(
        ("ttft_ms", "duration_ms", "prefix_hit_rate", "forwarded_share", "outstanding_max_to_mean")
    )
    return {"total": total, "regions": dict.fromkeys(REGIONS, total)}


def without(experiment: str, point: str, run: str) -> str:
    """The page without any seed of this run."""
    found = results(rates={WORTH: 10.5, ALL_OF_THEM: 10.5}).figures
    kept = {place: each for place, each in found.items() if place[:3] != (experiment, point, run)}
    return page_of(PLAN, Results(kept), {})["skywalker.md"]


def results(plan: SkyWalkerEvaluation = PLAN, rates: Mapping[str, float] | None = None) -> Results:
    """Equal results for all runs but those with a rate given here."""
    found = {}
    for cell in all_cells(plan.experiments):
        rate = (rates or {}).get(cell.run_name, 10.0)
        if cell.point.name.isdecimal():
            rate *= int(cell.point.name)
        is_small = cell.experiment.startswith("day") and int(cell.point.name) < (9 if "alone" in cell.experiment else 5)
        of_regions_ms = 4000.0 if is_small else 500.0
        place = cell.experiment, cell.point.name, cell.run_name, cell.seed
        found[place] = figures(rate + cell.seed / 100, 5000 / rate, of_regions_ms)
    return Results(found)


def page(rates: Mapping[str, float] | None = None, others: Mapping[str, Figures] | None = None) -> str:
    return page_of(PLAN, results(rates=rates), others or {})["skywalker.md"]


def section(text: str, title: str) -> str:
    return text.split(f"## {title}", 1)[1].split("\n## ", 1)[0]


def test_a_page_comes_with_every_plot_that_it_shows() -> None:
    files = page_of(PLAN, results(), {})
    shown = re.findall(r"!\[.*?\]\((.*?)\)", files["skywalker.md"])
    assert sorted([*shown, "skywalker.md"]) == sorted(files)
    for name in shown:
        assert ET.fromstring(files[name]).tag.endswith("svg")


def test_the_same_results_make_the_same_page() -> None:
    assert page_of(PLAN, results(), {}) == page_of(PLAN, results(), {})


def test_whoever_beats_us_is_named_with_by_how_much() -> None:
    text = section(page({"consistent hash": 12.0}), "Fig. 8")
    assert "Arena-like, 4/4/4: consistent hash (× 1.20)" in text
    text = section(page(), "Fig. 8")
    assert "on 8 of 8 workloads no rival is more than 1% better" in text
    assert "It is behind on" not in text


def test_a_shortfall_is_told_with_its_size() -> None:
    text = section(page(), "The paper's figures beside ours")
    assert "throughput over single balancers, conversations: short by 11% at best." in text
    assert "| throughput over single balancers, conversations | × 1.12 to × 1.20 | × 1.00 |" in text


def test_what_is_reached_is_not_excused() -> None:
    alone = {name: 5.0 for name in PLAN.fig8.run_names if name != SKYWALKER}
    text = section(page(alone), "The paper's figures beside ours")
    assert "| throughput over single balancers, conversations | × 1.12 to × 1.20 | × 2.00 | reached |" in text
    assert "throughput over single balancers, conversations: " not in text


def test_a_change_has_its_own_verdicts_where_it_makes_a_difference() -> None:
    found = dict(results().figures)
    changed = [place for place in found if place[0] == "GKE without spill: fig8" and place[2] == GKE]
    assert len(changed) == len(PAPER_FLEETS) * len(PLAN.seeds)
    found |= {place: figures(5.0, 100.0) for place in changed}
    text = page_of(PLAN, Results(found), {})["skywalker.md"].split("### One change at a time", 1)[1]
    cells = {row.split(" | ")[0]: row.strip("| ").split(" | ")[1:] for row in text.splitlines() if row.startswith("| ")}
    place = cells["| figure"].index("GKE without spill")
    row = cells["| throughput over GKE's gateway, all"]
    assert row[place] == "reached"
    assert [each for number, each in enumerate(row) if number not in (0, place)] == ["–"] * (len(row) - 2)
    assert int(cells["| reached"][place]) > int(cells["| reached"][0])


def test_a_change_plays_what_the_claims_speak_of_and_no_more() -> None:
    for name, experiments in PLAN.varied.items():
        for field, each in experiments.items():
            whole = getattr(PLAN, field)
            assert {point.name for point in each.points} <= {point.name for point in whole.points}
            assert set(each.run_names) <= set(whole.run_names)
            assert [*each.cells()] != [*whole.cells()], name
    clients = PLAN.varied["twice the clients"]["fig8"].points[0].changes["clients"]
    assert [each["clients"] for each in clients] == [160, 160, 160]  # type: ignore[attr-defined]


def test_hit_rates_without_engines_are_shown_as_medians() -> None:
    offline = {"Arena-like, 4/4/4": [BestHits(0.4, 0.5), BestHits(0.2, 0.6), BestHits(0.3, 0.5)]}
    text = page_of(PLAN, results(), {}, offline=offline)["skywalker.md"]
    assert "| Arena-like, 4/4/4 | 30.0% | 50.0% | 20.0 |" in text
    assert "Fig. 6" not in page()


def test_the_smallest_fleet_is_found() -> None:
    text = section(page({SKYWALKER: 10.0, REGION_LOCAL: 7.0}), "Fig. 10")
    assert "with SkyWalker, 9 do, 25% fewer" in text


def test_a_day_adds_up_what_regions_need_apart() -> None:
    text = section(page(), "Fig. 3")
    assert "| 3 s | 5 | 3 + 3 + 3 = 9 | 44% |" in text
    assert "| 5 s | 3 | 1 + 1 + 1 = 3 | 0% |" in text


@pytest.mark.parametrize(("rate", "verdict"), [(10.5, "it is fit"), (10.0, "it is not fit"), (9.0, "it is not fit")])
def test_a_rule_of_ours_is_judged_by_all_workloads(rate: float, verdict: str) -> None:
    lines = section(page({WORTH: rate}), "Beyond the paper").splitlines()
    (judged,) = (line for line in lines if line.startswith(f"- `{WORTH}`: throughput"))
    assert verdict in judged


def test_it_says_what_it_was_made_of(tmp_path: Path) -> None:
    assert "No traces were given" in page()
    assert "the short one (without `FULL=1`): few seeds" in page()
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake/conversation_trace.jsonl").write_text('{"timestamp": 0}\n')
    traces = find_traces(tmp_path)
    plan = evaluation(traces, full=True, seeds=(1,))
    text = page_of(plan, results(plan), {})["skywalker.md"]
    assert "Recorded: Mooncake's conversation trace." in text
    assert "the full evaluation (`FULL=1`)" in text
    assert "### Mooncake conversation, 2/2/2" in text


def test_what_could_not_be_played_is_named_and_never_a_number() -> None:
    failures = {cell.title: "ConfigError: no such file" for cell in all_cells(PLAN.experiments)}
    text = page_of(PLAN, Results({}, failures), {})["skywalker.md"]
    assert f"**{len(failures)} cells could not be played**" in text
    assert "fig10: 10, SkyWalker, seed 1: ConfigError: no such file" in text
    rows = [line for line in section(text, "Fig. 8").splitlines() if line.startswith("| ") and "system" not in line]
    assert all(re.fullmatch(r"[–|: -]*", row.split("|", 2)[2]) for row in rows)
    assert "9 replicas apart were not played" in section(text, "Fig. 10")
    assert "| – | – | – | – | – |" in section(text, "Defaults chosen")


def test_a_seed_that_failed_is_left_out_of_its_median() -> None:
    found = dict(results().figures)
    del found["fig8", "Arena-like, 4/4/4", SKYWALKER, 3]
    failures = {"fig8: Arena-like, 4/4/4, SkyWalker, seed 3": "MemoryError: "}
    text = page_of(PLAN, Results(found, failures), {})["skywalker.md"]
    assert "- fig8: Arena-like, 4/4/4, SkyWalker, seed 3: MemoryError:" in text
    assert "| SkyWalker | 10.02 (10.01–10.02) |" in section(text, "Fig. 8")


def test_a_part_shows_only_what_was_played() -> None:
    found = {place: each for place, each in results().figures.items() if place[0] == "fig9"}
    files = page_of(PLAN, Results(found), {}, ["fig9"])
    text = files["skywalker.md"]
    assert "**A part of it:** only fig9" in text
    assert "## Fig. 9" in text
    assert not re.search(r"## (Fig\. 8|Fig\. 10|The paper|Defaults)", text)
    assert sorted(files) == ["skywalker-fig9.svg", "skywalker.md"]


def test_it_says_what_was_fitted() -> None:
    text = section(page(), "What is ours")
    assert "fitted by hand" in text
    assert "partly calibrated" in text
    assert "our assumption" in text


@pytest.mark.parametrize("axis", [axis for axis in AXES if axis.default is not None], ids=lambda axis: axis.name)
def test_a_default_is_what_the_code_has(axis: SettingAxis) -> None:
    (changes,) = (dict(of_run) for value, _, of_run in axis.values if value == axis.default)
    assert RunSection.model_validate(changes).as_config() == CoreConfig()


def test_worth_and_credit_are_what_the_code_has_beside_this_policy_and_the_papers_settings_are_not() -> None:
    runs = {str(run["name"]): RunSection.model_validate(run).as_config() for run in VARIANTS}
    ours = under(PlacementPolicy.PREFIX)
    papers = replace(ours.placement, peer_availability=PeerAvailability.FREE_REPLICA)
    assert runs[WORTH_AND_CREDIT] == replace(ours, placement=papers)
    assert runs[SKYWALKER] != under(PlacementPolicy.PREFIX)


def test_the_default_policy_is_said_to_be_another_one() -> None:
    assert f"another policy, `{CoreConfig().placement.policy}`, and no run here has that" in page()
    assert PlacementPolicy.COST not in {RunSection.model_validate(run).as_config().placement.policy for run in VARIANTS}


def test_what_is_called_skywalker_writes_out_whatever_of_the_papers_is_not_our_default() -> None:
    plain = (PLAN.fig8, PLAN.fig10, PLAN.day_pooled, PLAN.day_alone, PLAN.improvement, PLAN.unseen)
    runs: list[Any] = [cell.run for cell in all_cells(plain) if cell.run_name in (SKYWALKER, REGION_LOCAL)]
    assert all(run["placement"] == PAPER_PLACEMENT and run["pushing"] == PAPER_PUSHING for run in runs)
    assert PAPER_PLACEMENT["explore_rule"] == "share"
    assert PAPER_PUSHING["in_band_credit"] is None
    (worth,) = (run for run in VARIANTS if run["name"] == WORTH)
    paper = {**PAPER_PLACEMENT, "explore_rule": "worth", "explore_load": "128B"}
    assert (worth["placement"], worth["pushing"]) == (paper, PAPER_PUSHING)


def test_the_default_of_probes_is_what_the_code_has() -> None:
    (axis,) = (axis for axis in AXES if axis.name == "probe interval")
    assert axis.default == f"{ProbeConfig().interval_ns // 1_000_000} ms"


def test_defaults_are_held_against_the_best() -> None:
    found = dict(results().figures)
    for point in PLAN.sensitivity["queue buffer τ", "2"].points:
        for seed in PLAN.seeds:
            found["sensitivity, queue buffer τ 2", point.name, SKYWALKER, seed] = figures(20.0, 100.0)
    text = section(page_of(PLAN, Results(found), {})["skywalker.md"], "Defaults chosen")
    (tau,) = (line for line in text.splitlines() if line.startswith("| queue buffer τ"))
    assert "| 10 | 2 |" in tau
    assert "for 2 |" in tau
    (probes,) = (line for line in text.splitlines() if line.startswith("| probe interval"))
    assert "do not tell |" in probes


def test_what_others_measured_is_shown_when_it_is_there() -> None:
    assert "there is no `agreement.json` beside this page" in page()
    metric = {"metric": "tokens/s", "simulated_median": 100.0, "live_median": 98.0, "gap": 0.0204, "agrees": True}
    agreement = {"about": "One scenario.", "quiet_runs": 3, "live_runs": 3, "gap_max": 0.05, "metrics": [metric]}
    scale = {"text": ["A hundred regions."], "head": ["regions", "requests/s"], "rows": [["100", "2000"]]}
    text = page(others={"agreement": agreement, "scale": scale})
    assert "1 of 1 figures are within 5%. With which settings both ran was not written down." in text
    assert "| tokens/s | 100 | 98 | +2.0% |" in text
    assert "| 100 | 2000 |" in text


def test_the_slots_take_what_the_commands_write() -> None:
    scenario = load_scenario(SCENARIOS / "agreement.yaml")
    quiet = {"mean_share": 0.2}
    live = figures(10.0, 100.0) | {"machine_cpu": quiet}
    live = {**live, "regions": dict.fromkeys(scenario.regions, live["total"])}
    agreement = agreement_document(scenario, None, [live], [live, live])
    reading = ScaleReading(30.0, "", 1.0, 10.0, 8.0, 3.0, 2**30, 4_000, 20_000, 100, 0.6, 3, "abc")
    scale = document_of([ScaleMeasurement(POINTS[0], reading, provenance_here())])
    text = page(others=json.loads(json.dumps({"agreement": agreement, "scale": scale})))
    assert "2 of 2 live runs had the machine for themselves, and only they count; 5 of 5 figures are within 10%" in text
    assert (
        f"Both ran with policy {CoreConfig().placement.policy}, explore_rule {CoreConfig().placement.explore_rule}, "
        in text
    )
    assert "| ttft_p90_ms | 100 | 100 | +0.0% |" in text
    assert f"| {' | '.join(scale['rows'][0])} |" in text


def test_reached_is_said_to_be_what_is_checked() -> None:
    alone = {name: 10.0 / 1.115 for name in PLAN.fig8.run_names if name != SKYWALKER}
    text = section(page(alone), "The paper's figures beside ours")
    assert "throughput over single balancers, conversations | × 1.12 to × 1.20 | × 1.11 | reached |" in text
    assert f"at most {CLOSE:.0%} worse than the weakest end of the paper's range" in text
    assert "its strongest end is held against nothing" in text


def test_what_nothing_was_fitted_to_has_seeds_of_its_own() -> None:
    text = section(page({WORTH: 12.0}), "What nothing was fitted to")
    assert "seeds (101, 102 and 103)" in text
    assert text.count("× 1.181 (1.181–1.182)") == 3
    fitted = {point.name for point in PLAN.improvement.points}
    assert not fitted & {point.name for point in PLAN.unseen.points}


def test_the_rule_that_is_the_default_is_named_with_what_speaks_for_it() -> None:
    text = section(page({WORTH_AND_CREDIT: 10.5}), "Defaults chosen")
    assert f"`placement.explore_rule` is `{CoreConfig().placement.explore_rule}`, ours, and not `share`" in text
    assert "better on 12 and worse on 0: these runs are for it." in text
    assert "Without the credit it gives × 1.000, better on 0 and worse on 0: not for it." in text
    assert "comes from trials on three of these workloads, not recorded which" in text
    assert "these runs are not for it" in section(page({WORTH_AND_CREDIT: 9.0}), "Defaults chosen")


@pytest.mark.parametrize("missing", [SKYWALKER, WORTH])
def test_no_rule_is_judged_while_a_workload_is_missing(missing: str) -> None:
    text = without("improvement", "ToT, 4/4/4", missing)
    beyond = section(text, "Beyond the paper")
    (judged,) = (line for line in beyond.splitlines() if line.startswith(f"- `{WORTH}`: throughput"))
    assert "over 11 of 12 workloads" in judged
    assert judged.endswith("As a default it is not judged, with 11 of 12 workloads played.")
    assert f"`{ALL_OF_THEM}` and `{WORTH}` are not compared" in beyond
    assert ": not judged, with 11 of 12 workloads played." in section(text, "Defaults chosen")


def test_two_rules_are_compared_over_the_same_workloads() -> None:
    text = section(without("improvement", "ToT, 4/4/4", ALL_OF_THEM), "Beyond the paper")
    assert f"`{ALL_OF_THEM}` and `{WORTH}` are not compared" in text
    text = section(page({WORTH: 10.5, ALL_OF_THEM: 10.5}), "Beyond the paper")
    assert f"`{ALL_OF_THEM}` has × 1.000 of the throughput of `{WORTH}`, which within 1% is the same." in text


def test_a_default_is_not_judged_while_another_value_is_missing() -> None:
    place = PLAN.sensitivity["queue buffer τ", "2"]
    text = section(without(place.name, place.points[0].name, SKYWALKER), "Defaults chosen")
    (tau,) = (line for line in text.splitlines() if line.startswith("| queue buffer τ"))
    assert tau.endswith("| not judged, with 3 of 4 values played |")


def test_a_figure_of_the_paper_is_not_reached_while_a_pair_is_missing() -> None:
    alone = {name: 5.0 for name in PLAN.fig8.run_names if name != SKYWALKER}
    found = results(rates=alone).figures
    kept = {place: each for place, each in found.items() if place[:3] != ("fig8", "Arena-like, 4/4/4", GKE)}
    text = section(page_of(PLAN, Results(kept), {})["skywalker.md"], "The paper's figures beside ours")
    assert "| throughput over GKE's gateway, conversations | × 1.43 to × 1.62 | × 2.00 | 1 of 2 pairs played |" in text
    assert "it cannot be told, since pairs have no figures" in text
    kept = {place: each for place, each in kept.items() if place[0] != "fig8"}
    text = section(page_of(PLAN, Results(kept), {})["skywalker.md"], "The paper's figures beside ours")
    assert "| throughput over GKE's gateway, conversations | × 1.43 to × 1.62 | – | 0 of 2 pairs played |" in text


@pytest.mark.parametrize("idle", [{SKYWALKER}, {WORTH}, {ALL_OF_THEM}, {REGION_LOCAL}, {WORTH, ALL_OF_THEM}, set()])
def test_who_does_nothing_breaks_no_page(idle: set[str]) -> None:
    """An empty set stands for all runs."""
    found = results().figures
    made = Results({place: nothing() if place[2] in idle or not idle else each for place, each in found.items()})
    text = page_of(PLAN, made, {})["skywalker.md"]
    assert not re.search(r"\b(nan|inf)\b", text)
    assert "As a default it is fit" not in text


def test_what_nothing_was_fitted_to_stays_what_it_was_when_it_was_written_down() -> None:
    """A change to any of these would be a choice made after seeing the result."""
    assert [(each.scenario, each.changes) for each in UNSEEN] == [
        ("skewed_day.yaml", {}),
        (
            "skewed_day.yaml",
            {"workloads": {"chat": {"conversations": {"applications": 1, "system_prompt_words": 2000}}}},
        ),
        ("skewed_day.yaml", {"workloads": {"chat": {"bursts": {}}}}),
    ]
    assert PLAN.unseen.points == UNSEEN
    assert PLAN.unseen.seeds == UNSEEN_SEEDS == (101, 102, 103)
    assert PLAN.unseen.runs == VARIANTS[:4]
    document = read_yaml(SCENARIOS / "skewed_day.yaml").mapping()
    of_load = {key: value for key, value in document.items() if key not in ("name", "about", "runs")}
    digest = blake2b(json.dumps(of_load, sort_keys=True).encode(), digest_size=8).hexdigest()
    assert digest == "5894dfcb256ca01a", "the scenario of the unseen workloads has changed"
