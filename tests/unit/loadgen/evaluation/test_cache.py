"""A cell is found again only if nothing that its figures depend on has changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from loadgen.evaluation.cache import CellCache, code_version
from loadgen.evaluation.experiments import Cell, Point

SMALL = Point("here", "paper_pushing.yaml", {"duration": "2s", "warm_up": "1s"})


def cell(
    *, experiment: str = "one", point: Point = SMALL, run: Mapping[str, object] | None = None, seed: int = 1
) -> Cell:
    return Cell(experiment, point, run or {"name": "a", "system": "skywalker"}, seed)


def changed(**changes: object) -> Point:
    return Point("there", SMALL.scenario, {**SMALL.changes, **changes})


def cache(folder: Path, code: str = "code") -> CellCache:
    return CellCache(folder, code)


def test_the_same_cell_of_another_experiment_has_the_same_key(tmp_path: Path) -> None:
    keys = cache(tmp_path)
    same = Point("elsewhere", SMALL.scenario, dict(SMALL.changes))
    assert keys.key_of(cell()) == keys.key_of(cell(experiment="other", point=same))


def test_a_value_that_is_the_default_anyway_changes_nothing(tmp_path: Path) -> None:
    keys = cache(tmp_path)
    written = {"name": "a", "system": "skywalker", "placement": {"policy": "prefix"}}
    assert keys.key_of(cell()) == keys.key_of(cell(run=written))


def test_whatever_matters_changes_the_key(tmp_path: Path) -> None:
    keys = cache(tmp_path)
    others = [
        keys.key_of(cell(seed=2)),
        keys.key_of(cell(point=changed(duration="3s"))),
        keys.key_of(cell(run={"name": "a", "system": "gke"})),
        cache(tmp_path, "other code").key_of(cell()),
    ]
    assert len({keys.key_of(cell()), *others}) == 5


def test_a_recorded_file_counts_by_what_it_holds_not_by_where_it_lies(tmp_path: Path) -> None:
    def asked(file: Path, text: str) -> str:
        file.parent.mkdir()
        file.write_text(text)
        return cache(tmp_path).key_of(cell(point=changed(**{"workloads.tree.questions": str(file)})))

    here = asked(tmp_path / "a" / "questions.jsonl", '{"question": "How many?"}\n')
    moved = asked(tmp_path / "b" / "questions.jsonl", '{"question": "How many?"}\n')
    other = asked(tmp_path / "c" / "questions.jsonl", '{"question": "How much?"}\n')
    assert here == moved
    assert here != other


def test_what_was_kept_is_found_and_a_broken_file_is_not(tmp_path: Path) -> None:
    keys = cache(tmp_path / "new")
    key = keys.key_of(cell())
    assert keys.find(key) is None
    keys.keep(key, {"total": 1})
    assert keys.find(key) == {"total": 1}
    (file,) = (tmp_path / "new").rglob("*.json")
    file.write_text('{"total": ')
    assert keys.find(key) is None


def test_the_code_version_follows_the_sources_and_nothing_else(tmp_path: Path) -> None:
    core = tmp_path / "gateway/core"
    core.mkdir(parents=True)
    (core / "a.py").write_text("1")
    before = code_version(tmp_path)
    (tmp_path / "gateway/main.py").write_text("2")
    assert code_version(tmp_path) == before
    (core / "a.py").write_text("2")
    assert code_version(tmp_path) != before
