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
    "gateway/core/config.py",
    "gateway/core/events.py",
    "gateway/core/features/catalogue.py",
    "gateway/core/tenant_config.py",
    "gateway/conformance/upsets.py",
    "gateway/features/catalogue.py",
    "gateway/features/recorded.py",
    "gateway/features/sections.py",
    "gateway/features/status_views.py",
)
SECTIONS = ("gateway/core/config.py", "gateway/features/sections.py")
"""Lists that give features keys of the region file."""
NO_FEATURES = {
    "__init__",
    "catalogue",
    "extension",
    "recorded",
    "section",
    "sections",
    "status",
    "status_views",
    "words",
}
KERNELS_TESTS = "tests/unit/gateway/core/test_gateway_core.py"
HALVES = [path for folder in FOLDERS for path in (ROOT / folder).glob("[!_]*") if path.stem not in NO_FEATURES]
ALL = sorted({path.stem for path in HALVES})
DEPENDENT = {"disaggregated": ["expert_locality"]}
"""Features that cannot be without another one, by that one's name, and go with it."""
PROGRAM = f"""
import importlib, pkgutil, sys
import pytest
keys = sys.argv[1:]
from gateway.config.region_file import RegionFile
assert not set(keys) & set(RegionFile.model_fields)
for module in pkgutil.walk_packages(importlib.import_module("gateway").__path__, "gateway."):
    importlib.import_module(module.name)
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", {KERNELS_TESTS!r}]))
"""
"""Imports every module of the gateway, and runs the kernel's tests. Arguments are keys that are unknown now."""
_KEY = re.compile(r"    (\w+): .* = ")
"""Field of the region file's sections."""


def copy_of_tree(copy: Path) -> None:
    """Copy the gateway and the kernel's tests."""
    for part in ("gateway", "mesh", "protos", "tests/support", "tests/fakes"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / KERNELS_TESTS).parent.mkdir(parents=True)
    for file in (KERNELS_TESTS, "tests/__init__.py", "pyproject.toml"):
        shutil.copy(ROOT / file, copy / file)


def delete(feature: str, copy: Path) -> list[str]:
    """Delete a feature's halves and their lines in the lists. Return the keys of the region file that go with them."""
    for folder in FOLDERS:
        (copy / folder / f"{feature}.py").unlink(missing_ok=True)
        shutil.rmtree(copy / folder / feature, ignore_errors=True)
    struck = {file: lines for file in LISTS if (lines := strike(feature, copy / file))}
    assert struck, "a list names it"
    sections = [line for file in SECTIONS for line in struck.get(file, [])]
    return [key[1] for line in sections if (key := _KEY.match(line))]


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


def tree_without(feature: str, copy: Path) -> list[str]:
    """Copy the tree without a feature and those that need it. Return the keys of the region file that went."""
    copy_of_tree(copy)
    return [key for each in (*DEPENDENT.get(feature, ()), feature) for key in delete(each, copy)]


def run_in(copy: Path, *arguments: str) -> None:
    run = subprocess.run(
        (sys.executable, *arguments),
        cwd=copy,
        env={"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout[-4_000:] + run.stderr[-4_000:]


def test_there_are_features() -> None:
    assert len(ALL) >= 12
    assert {name for name in ALL if sum(path.stem == name for path in HALVES) == 2} >= {
        "cache_digests",
        "classes",
        "disaggregated",
        "expert_locality",
        "kv_events",
        "lengths",
        "limits",
        "lockdown",
        "prices",
        "resume",
        "scaling",
        "sharing",
        "stored_responses",
    }


@pytest.mark.parametrize("feature", first_of(ALL))
def test_the_gateway_works_without_a_feature(feature: str, tmp_path: Path) -> None:
    keys = tree_without(feature, tmp_path)
    run_in(tmp_path, "-c", PROGRAM, *keys)


@pytest.mark.nightly
@pytest.mark.parametrize("feature", ALL)
def test_the_gateway_without_a_feature_is_typed(feature: str, tmp_path: Path) -> None:
    tree_without(feature, tmp_path)
    run_in(tmp_path, "-m", "mypy", "gateway", "mesh")
