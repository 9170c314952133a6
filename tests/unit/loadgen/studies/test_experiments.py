"""A simulated cell's key follows its scenario and the files that this names, and no name of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from loadgen.studies.cells import play_all
from loadgen.studies.experiments import Experiment, Point, ScenarioCell, play, runs_of
from tests.support.traces import published

SMALL = Point("here", "paper_pushing.yaml", {"duration": "2s", "warm_up": "1s"})


def cell(
    *, experiment: str = "one", point: Point = SMALL, run: Mapping[str, object] | None = None, seed: int = 1
) -> ScenarioCell:
    return ScenarioCell(experiment, point, run or {"name": "a", "system": "skywalker"}, seed)


def key(**changes: object) -> str:
    return cell(point=Point("there", SMALL.scenario, {**SMALL.changes, **changes})).cell().key()


def test_the_same_cell_of_another_experiment_has_the_same_key() -> None:
    assert cell().cell().key() == cell(experiment="other").cell().key() == key()


def test_whatever_matters_changes_the_key() -> None:
    others = [cell(seed=2).cell().key(), cell(run={"name": "a", "system": "gke"}).cell().key(), key(duration="3s")]
    assert len({key(), *others}) == 4


def test_every_file_that_a_scenario_names_counts_by_what_it_holds(tmp_path: Path) -> None:
    names = ("questions.jsonl", "round_trips.csv", "rates.csv", "recorded.jsonl")
    questions, round_trips, rates, recorded = (str(tmp_path / name) for name in names)
    arrivals = {"recorded": {"file": rates, "day": "1h", "mean": 1}}
    changes = {
        "workloads.tree.questions": questions,
        "workloads.chat": {"trace": {"file": recorded}},
        "round_trips": round_trips,
        "clients": [{"region": "us-east-1", "workload": "tree", "arrivals": arrivals}],
    }
    for name in names:
        (tmp_path / name).write_text("as it was")
    before = key(**changes)
    for name in names:
        (tmp_path / name).write_text("another")
        assert key(**changes) != before, name
        (tmp_path / name).write_text("as it was")
    assert key(**changes) == before


def test_users_who_come_when_a_trace_says_so_are_told_apart(tmp_path: Path) -> None:
    """Region, shift of the trace and number of clients each give a cell a key of its own."""
    trace = {"trace": {"file": str(published(tmp_path) / "mooncake/conversation_trace.jsonl")}}

    def asked(**client: object) -> str:
        return key(workloads={"recorded": trace}, clients=[{"workload": "recorded"} | client])

    others = [asked(region="us-east-1", shift="3s"), asked(region="us-east-1", clients=1)]
    assert len({asked(region="us-east-1"), *others}) == 3


def test_a_played_cell_gives_the_figures_of_its_run(tmp_path: Path) -> None:
    figures = play(cell())
    assert figures["name"] == "a"
    assert figures["total"]["requests"] > 0
    assert "series" not in figures
    experiment = Experiment("one", (SMALL,), ({"name": "a", "system": "skywalker"},), (1, 2))
    results = play_all([cell().cell()], tmp_path, processes=1)
    assert runs_of(results, experiment, "here", "a") == [figures, {}]
