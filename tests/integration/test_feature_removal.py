"""Each optional feature of the core can be deleted: the tree without it imports, and passes the kernel's tests.

A process of its own is needed, since a module that was imported once cannot be missing any more.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FEATURES = Path("gateway/core/features")
CATALOGUE = FEATURES / "catalogue.py"
KERNELS_TESTS = "tests/unit/gateway/core/test_gateway_core.py"
STEMS = {path.stem for path in (ROOT / FEATURES).glob("*.py")} - {"__init__", "catalogue"}
PACKAGES = {path.parent.name: f"{path.parent.name}.feature" for path in (ROOT / FEATURES).glob("*/feature.py")}
ALL = {stem: stem for stem in STEMS} | PACKAGES
"""Module with the class of each feature, by the feature's name."""
PROGRAM = f"""
import importlib, pkgutil, sys
import gateway, pytest
for module in pkgutil.walk_packages(gateway.__path__, "gateway."):
    importlib.import_module(module.name)
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", {KERNELS_TESTS!r}]))
"""
"""Imports every module of the gateway, and runs the kernel's tests."""


def without(feature: str, copy: Path) -> None:
    """Copy the gateway and the kernel's tests, and delete a feature and its line in the list."""
    for part in ("gateway", "protos", "tests/support", "tests/fakes"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / KERNELS_TESTS).parent.mkdir(parents=True)
    for file in (KERNELS_TESTS, "tests/__init__.py", "pyproject.toml"):
        shutil.copy(ROOT / file, copy / file)
    if feature in PACKAGES:
        shutil.rmtree(copy / FEATURES / feature)
    else:
        (copy / FEATURES / f"{feature}.py").unlink()
    told = (copy / CATALOGUE).read_text()
    found = re.search(rf"from gateway\.core\.features\.{re.escape(ALL[feature])} import (\w+)\n", told)
    assert found is not None, "the list names it"
    left = told.replace(found.group(0), "").replace(f"        {found.group(1)}(core),\n", "")
    assert left.count("\n") == told.count("\n") - 2, "its import and its line go"
    (copy / CATALOGUE).write_text(left)


def test_there_are_features() -> None:
    assert len(ALL) >= 8


@pytest.mark.parametrize("feature", sorted(ALL))
def test_what_is_left_without_a_feature_works(feature: str, tmp_path: Path) -> None:
    without(feature, tmp_path)
    environment = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run(
        (sys.executable, "-c", PROGRAM), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stdout[-4_000:] + run.stderr[-4_000:]
