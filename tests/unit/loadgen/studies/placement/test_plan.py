"""All planned cells can be played: each is a scenario, and held-out workloads are not among them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import fields

from gateway.core.kernel.config import PlacementConfig
from loadgen.studies.experiments import ScenarioCell, all_cells
from loadgen.studies.placement.constants import CONSTANTS, Constant
from loadgen.studies.placement.plan import SEEDS, SEEDS_FULL, PlacementEvaluation, evaluation
from loadgen.studies.placement.systems import BASELINES, BEFORE, LLM_D, OURS, STRONGEST, SYSTEMS
from tests.support.traces import published

TRIED = Constant("peer_queue_length_max", "10", ("3", "10", "30"), "As good as any to try it with.")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> PlacementEvaluation:
    return evaluation(published(tmp_path_factory.mktemp("traces")), constants=(TRIED,))


def cells_of(plan: PlacementEvaluation) -> Iterator[ScenarioCell]:
    """One cell of each point and run."""
    seen = set()
    for cell in all_cells(plan.experiments):
        if (key := (cell.experiment, cell.point.name, cell.run_name)) not in seen:
            seen.add(key)
            yield cell


def test_every_cell_is_a_scenario(plan: PlacementEvaluation) -> None:
    for cell in cells_of(plan):
        assert cell.scenario().runs[0].name == cell.run_name


def test_every_point_has_a_key_of_its_own(plan: PlacementEvaluation) -> None:
    """Points that are the same under another name may share a key."""
    first = {cell.point.name: cell for cell in cells_of(plan) if cell.run_name == OURS}
    keys = {cell.cell().key() for cell in first.values()}
    assert len(keys) >= len(first) - len(plan.sweeps)


def test_points_of_an_experiment_have_names_of_their_own(plan: PlacementEvaluation) -> None:
    names = [experiment.name for experiment in plan.experiments]
    assert len(set(names)) == len(names)
    for experiment in plan.experiments:
        assert len({point.name for point in experiment.points}) == len(experiment.points)


def test_workloads_are_played_by_everybody_and_sweeps_by_the_strongest(plan: PlacementEvaluation) -> None:
    assert len(plan.workloads) == 18
    for series in plan.workloads:
        assert series.experiment.run_names == list(SYSTEMS)
        assert len(series.experiment.seeds) == SEEDS_FULL
    for series in (*plan.sweeps, *plan.cases):
        assert series.experiment.run_names == [OURS, BEFORE, *STRONGEST]
        assert len(series.experiment.seeds) == SEEDS
    assert set(STRONGEST) <= set(BASELINES)


def test_a_sweep_has_a_point_for_each_load_and_both_loops_are_swept(plan: PlacementEvaluation) -> None:
    assert {"clients a region", "programs/s a region", "recorded arrivals, times"} == {
        each.axis for each in plan.sweeps
    }
    for series in plan.sweeps:
        assert len(series.loads) == len(series.experiment.points) >= 5
        assert list(series.loads) == sorted(series.loads)


def test_each_experiment_tells_llm_d_how_fast_its_own_engines_prefill(plan: PlacementEvaluation) -> None:
    rates = {"llama-3.1-8b-l4": 8333, "llama-3.1-8b-h100": 125_000}
    for cell in cells_of(plan):
        if cell.run_name == LLM_D:
            scenario = cell.scenario()
            config = scenario.runs[0].as_config().placement
            assert config.affinity_prefill_bytes == rates[scenario.preset], cell.title


def test_a_spike_is_over_before_it_is_looked_at(plan: PlacementEvaluation) -> None:
    assert len(plan.spikes) == 5
    for spike in plan.spikes:
        calm, spiked = (ScenarioCell("", point, {"name": "run"}, 1).scenario() for point in spike.experiment.points)
        assert (calm.duration, calm.warm_up) == (spiked.duration, spiked.warm_up)
        more = spiked.clients[len(calm.clients) :]
        curves = [section.arrivals.curve for section in more if section.arrivals is not None]
        assert len(curves) == 3
        assert all(curve and curve[-1][1] == 0 and curve[-1][0] < calm.warm_up for curve in curves)


def test_larger_fleets_have_as_many_more_users(plan: PlacementEvaluation) -> None:
    (series,) = (each for each in plan.cases if each.experiment.name == "case, fleets")
    scenarios = [ScenarioCell("", point, {"name": "run"}, 1).scenario() for point in series.experiment.points]
    sizes = [(sum(map(len, each.fleet().values())), sum(c.clients or 0 for c in each.clients)) for each in scenarios]
    assert sizes == [(6, 90), (24, 360), (96, 1440)]


def test_what_is_lost_is_lost_while_it_is_looked_at(plan: PlacementEvaluation) -> None:
    lost = [each for each in plan.cases if "lost" in each.experiment.name]
    assert len(lost) == 4
    for series in lost:
        scenario = ScenarioCell("", series.experiment.points[0], {"name": "run"}, 1).scenario()
        (span,) = {span for section in scenario.faults for span in section.as_fault().spans()}
        assert scenario.warm_up < span[0] < span[1] < scenario.duration
        in_region = sum(len(owned) for name, owned in scenario.fleet().items() if name.startswith("ap-northeast-1"))
        assert len(scenario.faults) == (in_region if "region" in series.experiment.name else 1)


def test_a_constant_is_tried_alone(plan: PlacementEvaluation) -> None:
    experiments = plan.sensitivity[TRIED.key]
    assert len(experiments) == 6
    for experiment in experiments:
        assert experiment.run_names == ["3", "10", "30"]
        cell = next(cell for cell in experiment.cells() if cell.run_name == "30")
        assert cell.scenario().runs[0].as_config().placement == PlacementConfig(peer_queue_length_max=30)


def test_constants_are_settings() -> None:
    keys = {each.name.removesuffix("_ns").replace("_bytes", "") for each in fields(PlacementConfig)}
    assert {each.key for each in CONSTANTS} <= keys
    with pytest.raises(AssertionError, match="is none of its values"):
        Constant("overflow", "on", ("off",), "")


def test_what_is_held_out_is_played_only_when_it_is_looked_at(plan: PlacementEvaluation, tmp_path: Path) -> None:
    assert plan.held_out == ()
    looked = evaluation(published(tmp_path), look=True)
    assert [each.experiment.name for each in looked.held_out] == ["held out, azure", "held out, mtbench"]
    for series in looked.held_out:
        cell = next(iter(series.experiment.cells()))
        assert len(cell.scenario().fleet()) == 3
    kept = {point.name for each in looked.held_out for point in each.experiment.points}
    assert not kept & {cell.point.name for cell in all_cells(plan.experiments)}


def test_without_traces_there_is_less_of_everything_and_nothing_held_out() -> None:
    bare = evaluation(None, look=True)
    assert bare.held_out == ()
    assert len(bare.workloads) == 14
    assert all("agentic" not in each.name for each in bare.experiments)
    assert all((bare.sweeps, bare.cases, bare.spikes))
