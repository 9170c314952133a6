"""Each optional feature can be deleted, in the core and outside it: the tree without it imports, and passes the
tests of the kernel. A key of the region file that was the feature's is unknown then.

A process of its own is needed, since a module that was imported once cannot be missing any more. `make test` deletes
one feature in each way, `make nightly` every one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.nightly import first_of

ROOT = Path(__file__).parents[2]
FOLDERS = (Path("gateway/core/features"), Path("gateway/features"))
"""Folders of the features' halves, in the core and outside it."""
LISTS = (
    "gateway/core/features/catalogue.py",
    "gateway/core/events.py",
    "gateway/conformance/upsets.py",
    "gateway/features/catalogue.py",
    "gateway/features/recorded.py",
    "gateway/features/sections.py",
    "gateway/features/status_views.py",
)
NO_FEATURES = {"__init__", "catalogue", "extension", "recorded", "section", "sections", "shown", "status", "words"}
KERNELS_TESTS = "tests/unit/gateway/core/test_gateway_core.py"
HALVES = [path for folder in FOLDERS for path in (ROOT / folder).glob("[!_]*") if path.stem not in NO_FEATURES]
ALL = sorted({path.stem for path in HALVES})
DEPENDENT = {"disaggregated": ["expert_locality"]}
"""Features that cannot be without another one, by that one's name, and go with it."""
PROGRAM = f"""
import importlib, pkgutil, sys
import pytest
package, *keys = sys.argv[1:]
if package == "gateway":
    from gateway.config.region_file import RegionFile
    assert not set(keys) & set(RegionFile.model_fields)
for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
    importlib.import_module(module.name)
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", {KERNELS_TESTS!r}]))
"""
"""Imports every module of a package, and runs the kernel's tests. Further arguments are keys that are unknown now."""
NAMED_BY_EDGES = {
    "limits": ["events"],
    "lockdown": ["events"],
    "stored_responses": ["events", "key"],
}
"""Modules of core halves that a request's path, the desk or a store imports. They stay when the whole gateway is
imported without the feature. The list only becomes shorter."""
WITH_EDGES_IN_PIECES = {"disaggregated", "expert_locality"}
"""Features that a request's path and the commands that fit for them still import: the core can do without them."""


_KEY = re.compile(r"    (\w+): .* = ")
"""Field of the region file's sections."""


def copy_of_tree(copy: Path) -> None:
    """Copy the gateway and the kernel's tests."""
    for part in ("gateway", "mesh", "protos", "tests/support", "tests/fakes"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / KERNELS_TESTS).parent.mkdir(parents=True)
    for file in (KERNELS_TESTS, "tests/__init__.py", "pyproject.toml"):
        shutil.copy(ROOT / file, copy / file)


def delete(feature: str, copy: Path, stay: list[str]) -> list[str]:
    """Delete a feature's halves and their lines in the lists, but for modules of its core half that stay. Return the
    keys of the region file that go with them."""
    for folder in FOLDERS:
        (copy / folder / f"{feature}.py").unlink(missing_ok=True)
        half = copy / folder / feature
        kept = stay if folder == FOLDERS[0] else []
        texts = {name: (half / f"{name}.py").read_text() for name in (*kept, "__init__")} if kept else {}
        shutil.rmtree(half, ignore_errors=True)
        for name, text in texts.items():
            half.mkdir(exist_ok=True)
            (half / f"{name}.py").write_text(text)
    lists = [file for file in LISTS if file != "gateway/core/events.py" or "events" not in stay]
    struck = {file: lines for file in lists if (lines := strike(feature, copy / file))}
    assert struck, "a list names it"
    return [key[1] for line in struck.get("gateway/features/sections.py", []) if (key := _KEY.match(line))]


def strike(feature: str, file: Path) -> list[str]:
    """Delete the lines of a list that name what it imports of a feature. Return those lines."""
    told = file.read_text()
    statement = rf"from gateway\.(?:core\.)?features\.{feature}(?:\.\w+)? import (\([^)]*\)|[^\n]*)\n"
    names = [name for found in re.findall(statement, told) for name in re.findall(r"\w+", found)]
    if not names:
        return []
    lines = re.sub(statement, "", told).splitlines(keepends=True)
    named = re.compile(rf"\b({'|'.join(names)})\b")
    left = [line for line in lines if named.search(line) is None]
    assert len(left) < len(lines), "it is listed"
    file.write_text("".join(left))
    return [line for line in lines if named.search(line)]


def run_without(feature: str, tmp_path: Path, package: str, stay: list[str]) -> None:
    """Delete a feature from a copy of the tree, import a package there, and run the kernel's tests."""
    copy_of_tree(tmp_path)
    keys = [key for each in (*DEPENDENT.get(feature, ()), feature) for key in delete(each, tmp_path, stay)]
    run = subprocess.run(
        (sys.executable, "-c", PROGRAM, package, *keys),
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout[-4_000:] + run.stderr[-4_000:]


def test_there_are_features() -> None:
    assert len(ALL) >= 11
    assert {name for name in ALL if sum(path.stem == name for path in HALVES) == 2} >= {
        "lengths",
        "limits",
        "prices",
        "scaling",
    }
    assert set(ALL) >= {*NAMED_BY_EDGES, *WITH_EDGES_IN_PIECES}


@pytest.mark.parametrize("feature", first_of(sorted(set(ALL) - WITH_EDGES_IN_PIECES)))
def test_the_gateway_works_without_a_feature(feature: str, tmp_path: Path) -> None:
    run_without(feature, tmp_path, "gateway", NAMED_BY_EDGES.get(feature, []))


@pytest.mark.parametrize("feature", first_of(sorted({*NAMED_BY_EDGES, *WITH_EDGES_IN_PIECES})))
def test_the_core_works_without_anything_of_a_feature(feature: str, tmp_path: Path) -> None:
    run_without(feature, tmp_path, "gateway.core", [])
