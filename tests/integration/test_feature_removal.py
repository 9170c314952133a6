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
CORE, OUTER = Path("gateway/core/features"), Path("gateway/features")
"""Folders of the two halves; each has one list, `catalogue.py`."""
KERNELS_TESTS = "tests/unit/gateway/core/test_gateway_core.py"


def halves_in(folder: Path) -> dict[str, Path]:
    """Halves of features by name: a file, or a folder with several."""
    files = {path.stem: path for path in (ROOT / folder).glob("*.py")}
    folders = {path.parent.name: path.parent for path in (ROOT / folder).glob("*/__init__.py")}
    of_all = {"__init__", "catalogue", "part"}
    return {name: path.relative_to(ROOT) for name, path in sorted((files | folders).items()) if name not in of_all}


ALL = halves_in(CORE) | halves_in(OUTER)
PROGRAM = f"""
import importlib, pkgutil, sys
import gateway, pytest
for module in pkgutil.walk_packages(gateway.__path__, "gateway."):
    importlib.import_module(module.name)
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", {KERNELS_TESTS!r}]))
"""
"""Imports every module of the gateway, and runs the kernel's tests."""


def without(feature: str, copy: Path) -> None:
    """Copy the gateway and the kernel's tests, and delete a feature: its halves and their lines in the lists."""
    for part in ("gateway", "protos", "tests/support", "tests/fakes"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / KERNELS_TESTS).parent.mkdir(parents=True)
    for file in (KERNELS_TESTS, "tests/__init__.py", "pyproject.toml"):
        shutil.copy(ROOT / file, copy / file)
    assert [delete(feature, half, copy) for half in (CORE, OUTER) if feature in halves_in(half)]


def delete(feature: str, folder: Path, copy: Path) -> Path:
    """Delete one half of a feature and its lines in the list. Returns what was deleted."""
    half = copy / halves_in(folder)[feature]
    shutil.rmtree(half) if half.is_dir() else half.unlink()
    catalogue = copy / folder / "catalogue.py"
    told, package = catalogue.read_text(), str(folder).replace("/", r"\.")
    found = re.search(rf"from {package}\.{feature}(?:\.\w+)? import (\w+)\n", told)
    assert found is not None, "the list names it"
    left = re.sub(rf" +{found.group(1)}(\(core\))?,\n", "", told.replace(found.group(0), ""))
    assert left.count("\n") == told.count("\n") - 2, "its import and its line go"
    catalogue.write_text(left)
    return half


def test_there_are_features() -> None:
    assert len(ALL) >= 8
    assert {"lengths", "limits"} <= halves_in(OUTER).keys() & halves_in(CORE).keys()


@pytest.mark.parametrize("feature", sorted(ALL))
def test_what_is_left_without_a_feature_works(feature: str, tmp_path: Path) -> None:
    without(feature, tmp_path)
    environment = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run(
        (sys.executable, "-c", PROGRAM), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stdout[-4_000:] + run.stderr[-4_000:]
