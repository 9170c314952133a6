"""The page reports the figures: targets met, targets missed, and by how much."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from functools import cache
from pathlib import Path

from loadgen.figures import Figures
from loadgen.studies.cells import Results
from loadgen.studies.experiments import ScenarioCell, all_cells
from loadgen.studies.placement.constants import Constant
from loadgen.studies.placement.page import page_of
from loadgen.studies.placement.plan import PlacementEvaluation, evaluation
from loadgen.studies.placement.reasons import reason_of
from loadgen.studies.placement.systems import LMETRIC, OURS, OURS_EXACT, SGLANG
from tests.support.traces import published

QUANTILES = ("p10", "p25", "p50", "p75", "p90", "mean")
TRIED = Constant("peer_queue_length_max", "10", ("3", "10", "30"), "As good as any to try it with.", on_l4="10 as well")


@cache
def plan() -> PlacementEvaluation:
    return evaluation(None, constants=(TRIED,))


def figures(rate: float, ttft_s: float) -> Figures:
    total = {
        "requests_per_s": rate,
        "ttft_ms": dict.fromkeys(QUANTILES, 1000 * ttft_s),
        "duration_ms": dict.fromkeys(QUANTILES, 9000.0),
        "prefix_hit_rate": 0.5,
        "prefilled_tokens_per_request": 345.6,
        "forwarded_share": 0.1,
        "outstanding_max_to_mean": 1.5,
        "failed": 3,
    }
    return {"total": total}


def alike(cell: ScenarioCell) -> Figures:
    """Figures of equal throughput, with half the latency for Nightside."""
    return figures(10.0 + cell.seed / 100, 0.4 if cell.run_name == OURS else 0.9)


def results(told: Callable[[ScenarioCell], Figures] = alike) -> Results:
    cells = all_cells(plan().experiments)
    return Results({(c.experiment, c.point.name, c.run_name, c.seed): told(c) for c in cells})


def page(told: Callable[[ScenarioCell], Figures] = alike) -> str:
    return page_of(plan(), results(told))["placement.md"]


def section(text: str, title: str) -> str:
    return text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_a_page_comes_with_every_plot_that_it_shows() -> None:
    files = page_of(plan(), results())
    shown = re.findall(r"!\[.*?\]\((.*?)\)", files["placement.md"])
    assert sorted([*shown, "placement.md"]) == sorted(files)
    for name in shown:
        assert ET.fromstring(files[name]).tag.endswith("svg")


def test_where_all_is_met_nothing_is_missed() -> None:
    text = section(page(), "Aims")
    points = sum(len(each.experiment.points) for each in plan().series)
    assert f"Both are met at {points} of {points} points, and {points} are far better." in text
    assert "Missed" not in text


def test_every_miss_is_named_with_its_measure() -> None:
    def told(cell: ScenarioCell) -> Figures:
        is_it = cell.experiment == "workload, arena" and cell.run_name == LMETRIC
        return figures(12.5, 0.1) if is_it else alike(cell)

    text = section(page(told), "Aims")
    (miss,) = re.findall(r"^- .*", text, re.MULTILINE)
    missed = f"- Arena-like, 4/4/4: throughput -19.8% of {LMETRIC} and mean TTFT +300% of {LMETRIC}"
    assert miss == f"{missed}. {reason_of('Arena-like, 4/4/4')}"
    assert f"throughput -19.8% of {LMETRIC}; mean TTFT +300%" in section(page(told), "On every workload")


def test_a_curve_that_bends_down_is_named_with_whose_it_is() -> None:
    def told(cell: ScenarioCell) -> Figures:
        falls = cell.experiment == "sweep, tot" and cell.run_name == SGLANG and "48 clients" in cell.point.name
        return figures(5.0, 9.0) if falls else alike(cell)

    text = section(page(told), "Load sweeps")
    assert "ToT, 4/4/4; 2/2/2: ours does not fall; fallen: SGLang to × 0.50" in text
    assert text.count("fallen") == 1


def test_goodput_counts_only_what_is_in_time() -> None:
    def told(cell: ScenarioCell) -> Figures:
        return alike(cell) if cell.run_name == OURS or "15 clients" in cell.point.name else figures(20.0, 1.5)

    text = section(page(told), "Goodput")
    first, second = (part for part in text.split("TTFT p90 of at most")[1:])
    assert "× 1.00 |" in first
    assert "× 0.50 |" in second


def test_who_does_not_come_back_after_a_spike_has_less_than_one() -> None:
    def told(cell: ScenarioCell) -> Figures:
        stuck = "of bursts" in cell.point.name and cell.run_name == SGLANG
        return figures(6.0, 4.5) if stuck else figures(10.0, 0.9)

    rows = [line for line in section(page(told), "After a spike").splitlines() if line.startswith("| ")][2:]
    assert {("× 0.60 (0.60–0.60)" in row, "× 5.00" in row) for row in rows if "| SGLang |" in row} == {(True, True)}
    assert all("× 1.00 (1.00–1.00)" in row for row in rows if "| SGLang |" not in row)


def test_exactness_is_held_against_the_same_rule_without_it() -> None:
    def told(cell: ScenarioCell) -> Figures:
        return figures(10.5, 0.2) if cell.run_name == OURS_EXACT else figures(10.0, 0.4)

    text = section(page(told), "What exactness is worth")
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == len(plan().workloads)
    assert all("| × 1.050 (1.050–1.050) | × 0.50 | × 1.000" in row for row in rows)
    assert f"{plan().workloads[0].title} (× 1.050)" in text.split("ours has it on ")[1]
    assert "ours has it on none." in section(page(), "What exactness is worth")


def test_the_paper_s_own_rules_are_beside_ours() -> None:
    worse_on = plan().workloads[0].title

    def told(cell: ScenarioCell) -> Figures:
        if cell.run_name == OURS:
            return figures(7.0 if cell.point.name == worse_on else 12.0, 0.4)
        return figures(10.0, 0.8)

    text = section(page(told), "Beside the paper's own rules")
    count = len(plan().workloads)
    assert f"on {count - 1} of {count} workloads, and less throughput on {worse_on}." in text
    assert "| × 1.200 (1.200–1.200) | × 0.50 | × 1.200 (1.200–1.200) | × 0.50 |" in text
    assert "and less throughput on none." in section(page(), "Beside the paper's own rules")


def test_a_constant_is_shown_beside_its_default() -> None:
    def told(cell: ScenarioCell) -> Figures:
        return figures(8.0, 0.8) if cell.run_name == "3" else figures(10.0, 0.4)

    text = section(page(told), "Constants")
    assert "As good as any to try it with. L4: 10 as well" in text
    assert "| 3 | × 0.800 | × 2.00 |" in text
    assert "| 10 (default) | × 1.000 | × 1.00 |" in text


def test_what_was_not_played_is_said() -> None:
    text = page_of(plan(), Results({}, {"workload, arena: a cell": "it broke"}))["placement.md"]
    assert "**1 cells could not be played**" in text
    assert "0 of 0 points" in text
    assert "points were not played" in text
    assert "are kept aside, and were not played" in section(text, "Held out")


def test_a_part_of_it_has_only_what_was_asked_for() -> None:
    only = {plan().sweeps[0].experiment.name}
    text = page_of(plan(), results(), only)["placement.md"]
    assert f"**A part of it:** only {plan().sweeps[0].experiment.name}." in text
    assert "## At every load" in text
    assert "## On every workload" not in text
    assert "### `placement." not in text


def test_held_out_workloads_stand_beside_what_was_expected(tmp_path: Path) -> None:
    looked = evaluation(published(tmp_path), look=True)
    text = page_of(looked, Results({}), {each.experiment.name for each in looked.held_out})["placement.md"]
    assert "Expected before they were played: " in section(text, "Held out")
    assert "MT-Bench at the rates" in section(text, "Held out")
