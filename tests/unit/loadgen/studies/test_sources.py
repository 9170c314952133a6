"""The code of a cell is all that playing it imports, and nothing that only shows it."""

from __future__ import annotations

from pathlib import Path

from loadgen.studies.experiments import play
from loadgen.studies.sources import sources_of, version_of


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
    for folder in ("b", "f"):
        (tmp_path / folder).mkdir()
    files = {"a.py": "from b import c", "b/__init__.py": "", "b/c.py": "def f():\n    import d", "d.py": "", "e.py": "",
             "b/data.yaml": "", "f/data.yaml": ""}  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    before = version_of("a", tmp_path)
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n# changed\n")
        assert (version_of("a", tmp_path) == before) == (name in ("e.py", "f/data.yaml")), name
        (tmp_path / name).write_text(text)
