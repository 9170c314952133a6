"""Each optional feature can be deleted, in the core and outside it: the tree without it imports, and passes the
tests of the kernel. A key of the region file that was the feature's is unknown then.

A process of its own is needed, since a module that was imported once cannot be missing any more.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (Path("gateway/core/features"), Path("gateway/features"))
"""Folders of the features' halves, in the core and outside it."""
LISTS = (
    "gateway/core/features/catalogue.py",
    "gateway/core/kernel/events.py",
    "gateway/conformance/upsets.py",
    "gateway/features/catalogue.py",
    "gateway/features/sections.py",
)
"""Files with a line for each feature."""
NO_FEATURES = {"__init__", "catalogue", "extension", "section", "sections", "status", "words"}
KERNELS_TESTS = "tests/unit/gateway/core/test_gateway_core.py"
STILL_NEEDED = {
    "disaggregated": "*",
    "expert_locality": "*",
    "stored_responses": "key.py",
}
"""Files of features' core halves that are imported from elsewhere and stay when the feature is deleted; `*` stands for
all but `feature.py`. The list only becomes shorter."""
HALVES = [path for folder in FOLDERS for path in (ROOT / folder).glob("[!_]*") if path.stem not in NO_FEATURES]
ALL = sorted({path.stem for path in HALVES})
_LINE = re.compile(r"(?:    ){1,2}(\| )?([\w.]+: )?\w+(\(core\)|( = .+))?,?\n")
"""Line of a list: a name, a call of it, an entry of a mapping, a member of a union, or a field."""
_KEY = re.compile(r"    (\w+): .* = ")
PROGRAM = f"""
import importlib, pkgutil, sys
import gateway, pytest
from gateway.config.region_file import RegionFile
assert not set(sys.argv[1:]) & set(RegionFile.model_fields)
for module in pkgutil.walk_packages(gateway.__path__, "gateway."):
    importlib.import_module(module.name)
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", {KERNELS_TESTS!r}]))
"""
"""Imports every module of the gateway, and runs the kernel's tests. Its arguments are keys that are unknown now."""


def without(feature: str, copy: Path) -> list[str]:
    """Copy the gateway and the kernel's tests, and delete a feature's halves and their lines in the lists. Return the
    keys of the region file that went with them."""
    for part in ("gateway", "mesh", "protos", "tests/support", "tests/fakes"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / KERNELS_TESTS).parent.mkdir(parents=True)
    for file in (KERNELS_TESTS, "tests/__init__.py", "pyproject.toml"):
        shutil.copy(ROOT / file, copy / file)
    for folder in FOLDERS:
        (copy / folder / f"{feature}.py").unlink(missing_ok=True)
        for path in (copy / folder / feature).rglob("*.py"):
            if folder != FOLDERS[0] or not stays(feature, path.name):
                path.unlink()
    struck = {file: lines for file in LISTS if (lines := strike(feature, copy / file))}
    assert struck, "a list names it"
    return [key[1] for line in struck.get("gateway/features/sections.py", []) if (key := _KEY.match(line))]


def stays(feature: str, file: str) -> bool:
    """Return true if a file of a core half stays, with the package that it is in."""
    needed = STILL_NEEDED.get(feature, "").split()
    return file in needed or (bool(needed) and file == "__init__.py") or (needed == ["*"] and file != "feature.py")


def strike(feature: str, file: Path) -> list[str]:
    """Delete the lines of a list that name a feature: imports from its packages, and each line of the list with one of
    their names. Return those lines. A name that stands elsewhere, as in the fields of an event, is left where it is."""
    told = file.read_text()
    lines = told.splitlines(keepends=True)
    gone: set[int] = set()
    for node in ast.parse(told).body:
        if not isinstance(node, ast.ImportFrom) or not _is_of(feature, node.module or ""):
            continue
        imported = set(range(node.lineno - 1, node.end_lineno or node.lineno))
        names = "|".join(alias.asname or alias.name for alias in node.names)
        used = {number for number, line in enumerate(lines) if re.search(rf"\b({names})\b", line)} - imported
        if all(_LINE.fullmatch(lines[number]) for number in used):
            assert len(used) == len(node.names), "each name has a line"
            gone |= imported | used
    file.write_text("".join(line for number, line in enumerate(lines) if number not in gone))
    return [lines[number] for number in sorted(gone)]


def _is_of(feature: str, module: str) -> bool:
    return re.fullmatch(rf"gateway\.(core\.)?features\.{feature}(\..+)?", module) is not None


def test_there_are_features() -> None:
    assert len(ALL) >= 10
    assert {name for name in ALL if sum(path.stem == name for path in HALVES) == 2} >= {"lengths", "limits", "scaling"}


@pytest.mark.parametrize("feature", ALL)
def test_what_is_left_without_a_feature_works(feature: str, tmp_path: Path) -> None:
    keys = without(feature, tmp_path)
    environment = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run(
        (sys.executable, "-c", PROGRAM, *keys),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout[-4_000:] + run.stderr[-4_000:]
