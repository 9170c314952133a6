"""A cell is found again only if no input of its figures has changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from loadgen.studies.cache import CellCache
from loadgen.studies.experiments import Cell, Point
from loadgen.studies.play import play
from loadgen.studies.sources import sources_of, version_of
from tests.support.traces import published

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


def test_users_who_come_when_a_trace_says_so_are_told_apart(tmp_path: Path) -> None:
    """Region, shift of the trace and number of clients each give a cell a key of its own."""
    folder = published(tmp_path)
    trace = {"trace": {"file": str(folder / "mooncake/conversation_trace.jsonl")}}

    def asked(**client: object) -> str:
        clients = [{"workload": "recorded"} | client]
        return cache(tmp_path).key_of(cell(point=changed(workloads={"recorded": trace}, clients=clients)))

    recorded = asked(region="us-east-1")
    others = [asked(region="us-east-1", shift="3s"), asked(region="us-east-1", clients=1)]
    assert recorded == asked(region="us-east-1")
    assert len({recorded, *others}) == 3


def test_what_was_kept_is_found_and_a_broken_file_is_not(tmp_path: Path) -> None:
    keys = cache(tmp_path / "new")
    key = keys.key_of(cell())
    assert keys.find(key) is None
    keys.keep(key, {"total": 1})
    assert keys.find(key) == {"total": 1}
    (file,) = (tmp_path / "new").rglob("*.json")
    file.write_text('{"total": ')
    assert keys.find(key) is None


def test_a_file_of_rates_counts_by_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "chunk.csv").write_text("recorded\n")

    def keyed(name: str, rates: str) -> str:
        (tmp_path / name).write_text(rates)
        trace = {"file": str(tmp_path / "chunk.csv"), "format": "servegen", "rates": str(tmp_path / name)}
        return cache(tmp_path).key_of(cell(point=changed(workloads={"tree": {"trace": trace}})))

    assert keyed("a.csv", "0,1\n") == keyed("b.csv", "0,1\n") != keyed("c.csv", "0,2\n")


def test_the_code_of_a_cell_is_whatever_playing_it_imports() -> None:
    root = Path(__file__).parents[4]
    found = {file.relative_to(root).as_posix() for file in sources_of(play.__module__)}
    assert found > {
        "gateway/config/region_file.py",
        "gateway/policy/file.py",
        "gateway/core/placement/prefix.py",
        "loadgen/report.py",
    }
    assert found > {"loadgen/traces/servegen.py", "loadgen/engine/model.py", "loadgen/simulator/world.py"}
    shown = {"loadgen/pages/runs.py", "loadgen/studies/main.py", "loadgen/studies/skywalker/page.py"}
    assert not found & shown


def test_the_version_follows_what_is_imported_however_far_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    files = {"a.py": "from b import c", "b/__init__.py": "", "b/c.py": "def f():\n    import d", "d.py": "", "e.py": ""}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    before = version_of("a", tmp_path)
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n# changed\n")
        assert (version_of("a", tmp_path) == before) == (name == "e.py"), name
        (tmp_path / name).write_text(text)
