"""Cells are played once, kept as they finish, and not played again."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.evaluation.cache import CellCache
from loadgen.evaluation.experiments import Cell, Experiment, Point, all_cells
from loadgen.evaluation.play import play
from loadgen.evaluation.playing import play_all
from loadgen.figures import Figures

POINT = Point("here", "paper_pushing.yaml", {"duration": "2s", "warm_up": "1s"})
RUNS = ({"name": "a", "system": "skywalker"}, {"name": "b", "system": "gke"})


def experiment(name: str = "one", seeds: tuple[int, ...] = (1, 2)) -> Experiment:
    return Experiment(name, (POINT,), RUNS, seeds)


class Work:
    """Stands in for the simulator, and breaks off after so many cells."""

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


def test_a_played_cell_gives_the_figures_of_its_run() -> None:
    figures = play(next(experiment().cells()))
    assert figures["name"] == "a"
    assert figures["total"]["requests"] > 0
    assert "series" not in figures
