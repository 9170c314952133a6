"""Each optional feature can be deleted, in the core and outside it: the tree without it imports, and passes the
tests of the kernel. A key of the region file that was the feature's is unknown then.

A process of its own is needed, since a module that was imported once cannot be missing any more.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from gateway.features.sections import FeatureSections

ROOT = Path(__file__).parents[2]
FOLDERS = (Path("gateway/core/features"), Path("gateway/features"))
"""Folders of the features' halves, in the core and outside it."""
LISTS = ("gateway/core/features/catalogue.py", "gateway/features/catalogue.py", "gateway/features/sections.py")
NO_FEATURES = {"__init__", "catalogue", "extension", "section", "sections"}
KERNELS_TESTS = "tests/unit/gateway/core/test_gateway_core.py"
STILL_NEEDED = {
    "disaggregated": "*",
    "expert_locality": "*",
    "prices": "policy.py price_table.py",
    "stored_responses": "key.py",
}
"""Files of features' core halves that are imported from elsewhere and stay when the feature is deleted; `*` stands for
all but `feature.py`. The list only becomes shorter."""
HALVES = [path for folder in FOLDERS for path in (ROOT / folder).glob("[!_]*") if path.stem not in NO_FEATURES]
ALL = sorted({path.stem for path in HALVES})
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
    struck = [file for file in LISTS if strike(feature, copy / file)]
    assert struck or feature == "expert_locality", "a list names it"
    return [each.name for each in fields(FeatureSections) if each.name == feature]


def stays(feature: str, file: str) -> bool:
    """Return true if a file of a core half stays, with the package that it is in."""
    needed = STILL_NEEDED.get(feature, "").split()
    return file in needed or (bool(needed) and file == "__init__.py") or (needed == ["*"] and file != "feature.py")


def strike(feature: str, file: Path) -> bool:
    """Delete the lines of a list that name a feature. Return false if there are none."""
    told = file.read_text()
    found = re.search(rf"from gateway\.(?:core\.)?features\.{feature}(?:\.\w+)? import (\w+)\n", told)
    if found is None:
        return False
    lines = told.splitlines(keepends=True)
    left = [line for line in lines if re.search(rf"\b{found[1]}\b", line) is None]
    assert len(left) == len(lines) - 2, "its import and its line go"
    file.write_text("".join(left))
    return True


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
