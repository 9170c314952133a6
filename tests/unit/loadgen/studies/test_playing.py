"""Cells are played once, kept as they finish, and not played again."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.figures import Figures
from loadgen.studies.cache import CellCache
from loadgen.studies.experiments import Cell, Experiment, Point, all_cells
from loadgen.studies.inputs import files_of
from loadgen.studies.play import play
from loadgen.studies.playing import play_all

POINT = Point("here", "paper_pushing.yaml", {"duration": "2s", "warm_up": "1s"})
RUNS = ({"name": "a", "system": "skywalker"}, {"name": "b", "system": "gke"})


def experiment(name: str = "one", seeds: tuple[int, ...] = (1, 2)) -> Experiment:
    return Experiment(name, (POINT,), RUNS, seeds)


class Work:
    """Stand-in for the simulator that breaks off after this many cells."""

    def __init__(self, until: int = 1000) -> None:
        self.played: list[str] = []
        self._until = until

    def __call__(self, cell: Cell) -> Figures:
        if len(self.played) == self._until:
            raise KeyboardInterrupt
        self.played.append(cell.title)
        return {"run": cell.run_name, "seed": cell.seed}


def test_every_cell_is_played_and_found_by_its_place(tmp_path: Path) -> None:
    work = Work()
    results = play_all(list(experiment().cells()), CellCache(tmp_path, ""), processes=1, work=work)
    assert len(work.played) == 4
    assert results.of(experiment(), "here", "b") == [{"run": "b", "seed": 1}, {"run": "b", "seed": 2}]


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    cells = list(experiment().cells())
    with pytest.raises(KeyboardInterrupt):
        play_all(cells, CellCache(tmp_path, ""), processes=1, work=Work(until=3))
    work = Work()
    results = play_all(cells, CellCache(tmp_path, ""), processes=1, work=work)
    assert len(work.played) == 1
    assert len(results.figures) == 4


def test_other_code_plays_everything_again(tmp_path: Path) -> None:
    cells = list(experiment().cells())
    play_all(cells, CellCache(tmp_path, "old"), processes=1, work=Work())
    work = Work()
    play_all(cells, CellCache(tmp_path, "new"), processes=1, work=work)
    assert len(work.played) == 4


def test_equal_cells_of_two_experiments_are_played_once(tmp_path: Path) -> None:
    work, told = Work(), []
    both = (experiment("one"), experiment("two", seeds=(2, 3)))
    results = play_all(
        all_cells(both),
        CellCache(tmp_path, ""),
        processes=1,
        work=work,
        on_progress=lambda done, total: told.append((done, total)),
    )
    assert len(work.played) == 6
    assert len(results.figures) == 8
    assert told[0] == (0, 6)
    assert told[-1] == (6, 6)


def test_a_cell_that_fails_takes_no_other_with_it_and_is_tried_again(tmp_path: Path) -> None:
    def work(cell: Cell) -> Figures:
        if cell.run_name == "b" and cell.seed == 2:
            raise ValueError("no such trace")
        return {"seed": cell.seed}

    cells = list(experiment().cells())
    results = play_all(cells, CellCache(tmp_path, ""), processes=1, work=work)
    assert results.of(experiment(), "here", "b") == [{"seed": 1}, {}]
    assert results.failures == {"one: here, b, seed 2": "ValueError: no such trace"}
    again = Work()
    assert not play_all(cells, CellCache(tmp_path, ""), processes=1, work=again).failures
    assert again.played == ["one: here, b, seed 2"]


def test_what_was_played_after_a_file_had_changed_is_not_kept(tmp_path: Path) -> None:
    names = ("questions.jsonl", "round_trips.csv", "rates.csv", "recorded.jsonl")
    files = {name: tmp_path / name for name in names}
    texts = {
        "questions.jsonl": '{"question": "How many?"}\n',
        "round_trips.csv": "us-east-1,eu-west-1,70\n",
        "rates.csv": "minute,per_minute\n0,1\n1,2\n",
        "recorded.jsonl": '{"timestamp": 0, "input_length": 9, "output_length": 9, "hash_ids": [1]}\n',
    }
    arrivals = {"recorded": {"file": str(files["rates.csv"]), "day": "1h", "mean": 1}}
    changes = {
        **POINT.changes,
        "workloads.tree.questions": str(files["questions.jsonl"]),
        "workloads.chat": {"trace": {"file": str(files["recorded.jsonl"])}},
        "round_trips": str(files["round_trips.csv"]),
        "clients": [{"region": "us-east-1", "workload": "tree", "arrivals": arrivals}],
    }
    cells = list(Experiment("one", (Point("here", POINT.scenario, changes),), RUNS[:1], (1,)).cells())
    for name, file in files.items():
        for each in names:
            files[each].write_text(texts[each])

        def work(cell: Cell, changing: Path = file) -> Figures:
            changing.write_text(changing.read_text() + "\n")
            return {"seed": cell.seed}

        cache = CellCache(tmp_path / "cache", "")
        results = play_all(cells, cache, processes=1, work=work)
        (reason,) = results.failures.values()
        assert reason.endswith(f"so start it again: {name}"), reason
        assert not results.figures
    assert not list((tmp_path / "cache").rglob("*.json"))
    assert files_of(cells[0])[0] == cells[0].path


def test_a_played_cell_gives_the_figures_of_its_run() -> None:
    figures = play(next(experiment().cells()))
    assert figures["name"] == "a"
    assert figures["total"]["requests"] > 0
    assert "series" not in figures
