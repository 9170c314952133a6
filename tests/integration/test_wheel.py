"""The wheel contains everything that the command needs, and runs without the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("gateway", "controller", "loadgen", "mesh", "protos")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel built from a copy of the sources, so that no build output stays in the tree."""
    copy, dist = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "README.md", "LICENSE", "nightside.py", "setup.py"):
        shutil.copy(ROOT / name, copy)
    for package in (*PACKAGES, "policies"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
    ]
    subprocess.run([*pip, "--no-index", "--wheel-dir", dist, copy], check=True)
    (built,) = dist.glob("*.whl")
    return built


def test_the_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file())
    wanted = {str(path.relative_to(ROOT)) for path in files if path.suffix != ".pyc"}
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    policies = {f"gateway/policy/samples/{path.name}" for path in (ROOT / "policies").glob("*.yaml")}
    assert held == wanted | {"nightside.py"} | policies


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the wheel's content, which the first process that runs from there compiles for all."""
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def run_from(site: Path, cwd: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(site)}  # noqa: TID251 - the command inherits ours
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=True).stdout


def test_the_wheel_runs_outside_the_repository(site: Path, tmp_path: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert run_from(site, tmp_path, "-m", "nightside", "--version") == f"nightside, version {version}\n"
    assert run_from(site, tmp_path, "-c", "import nightside; print(nightside.__file__)") == f"{site}/nightside.py\n"
    page = run_from(site, tmp_path, "-c", "from loadgen.pages.runs import sweep_page; print(sweep_page('a day', []))")
    assert "<h1>a day</h1>" in page


@pytest.mark.nightly
def test_scenarios_policies_and_a_trace_are_reached_by_name_without_the_repository(site: Path, tmp_path: Path) -> None:
    nightside = ("-m", "nightside")
    run_from(site, tmp_path, *nightside, "policy", "sample", "us-east-1", "eu-west-1", "-o", "policies")
    assert "0 contradictions" in run_from(site, tmp_path, *nightside, "policy", "check", "policies/")
    short = ("--set", "duration=2s", "--set", "warm_up=1s", "--jobs", "1")
    assert "nightside" in run_from(site, tmp_path, *nightside, "sim", "skewed_day", *short)
    assert "it saves" in run_from(site, tmp_path, *nightside, "plan", "sample", "--rate", "200", "--formula")
