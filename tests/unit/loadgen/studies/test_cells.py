"""Cells are played once, kept as they finish, and not played again unless an input of their figures has changed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from loadgen.figures import Figures
from loadgen.studies import cells
from loadgen.studies.cells import Cell, CellCache, play_all


class Work:
    """Stand-in for a study's work that is interrupted after a number of cells, and fails on a seed."""

    def __init__(self, until: int = 1000, fails_on: int = 0) -> None:
        self.played: list[int] = []
        self._until, self._fails_on = until, fails_on

    def play(self, seed: int) -> Figures:
        if len(self.played) == self._until:
            raise KeyboardInterrupt
        if seed == self._fails_on:
            raise ValueError("no such trace")
        self.played.append(seed)
        return {"seed": seed}

    def cells(self, *seeds: int, study: str = "one", files: tuple[Path, ...] = ()) -> list[Cell]:
        return [Cell((study, each), f"{study}, {each}", partial(self.play, each), {"seed": each}, files)
                for each in seeds]  # fmt: skip


def test_every_cell_is_played_and_found_by_its_place(tmp_path: Path) -> None:
    work = Work()
    results = play_all(work.cells(1, 2), tmp_path, processes=1)
    assert work.played == [1, 2]
    assert results.figures == {("one", 1): {"seed": 1}, ("one", 2): {"seed": 2}}


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        play_all(Work(until=3).cells(1, 2, 3, 4), tmp_path, processes=1)
    work = Work()
    results = play_all(work.cells(1, 2, 3, 4), tmp_path, processes=1)
    assert work.played == [4]
    assert len(results.figures) == 4


def test_other_code_plays_everything_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play_all(Work().cells(1, 2), tmp_path, processes=1)
    monkeypatch.setattr(cells, "_code_of", lambda module: f"another {module}")
    work = Work()
    play_all(work.cells(1, 2), tmp_path, processes=1)
    assert work.played == [1, 2]


def test_equal_cells_of_two_studies_are_played_once(tmp_path: Path) -> None:
    work, told = Work(), list[tuple[int, int]]()
    both = [*work.cells(1, 2), *work.cells(2, 3, study="two")]
    results = play_all(both, tmp_path, processes=1, on_progress=lambda *at: told.append(at))
    assert work.played == [1, 2, 3]
    assert results.figures["one", 2] == results.figures["two", 2]
    assert (told[0], told[-1]) == ((0, 3), (3, 3))


def test_a_cell_that_fails_takes_no_other_with_it_and_is_tried_again(tmp_path: Path) -> None:
    results = play_all(Work(fails_on=2).cells(1, 2, 3), tmp_path, processes=1)
    assert list(results.figures) == [("one", 1), ("one", 3)]
    assert results.failures == {"one, 2": "ValueError: no such trace"}
    again = Work()
    assert not play_all(again.cells(1, 2, 3), tmp_path, processes=1).failures
    assert again.played == [2]


def test_what_was_played_after_a_file_had_changed_is_not_kept(tmp_path: Path) -> None:
    file = tmp_path / "rates.csv"
    file.write_text("0,1\n")

    def play() -> Figures:
        file.write_text(file.read_text() + "1,2\n")
        return {}

    results = play_all([Cell(1, "a cell", partial(play), {}, (file,))], tmp_path / "cache", processes=1)
    assert results.failures == {
        "a cell": "what it reads has changed since this was started, so start it again: rates.csv"
    }
    assert not list((tmp_path / "cache").rglob("*.json"))


def test_a_file_counts_by_what_it_holds_not_by_where_it_lies(tmp_path: Path) -> None:
    def key(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return Work().cells(1, files=(tmp_path / name,))[0].key()

    first = key("a.csv", "0,1\n")
    assert first == key("b.csv", "0,1\n") != key("c.csv", "0,2\n")
    assert key("a.csv", "0,1\n1,2\n") != first


def test_what_was_kept_is_found_and_a_broken_file_is_not(tmp_path: Path) -> None:
    kept = CellCache(tmp_path / "new")
    assert kept.find("key") is None
    kept.keep("key", {"total": 1})
    assert kept.find("key") == {"total": 1}
    (file,) = (tmp_path / "new").rglob("*.json")
    file.write_text('{"total": ')
    assert kept.find("key") is None
