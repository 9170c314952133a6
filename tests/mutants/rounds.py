"""Tests that a mutant of a module has to fail, in rounds: the nearest first.

Each round is a process of its own, with limits of CPU time and memory.
"""

from __future__ import annotations

import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY_BYTES = 8 << 30
CPU_S = (60, 60, 200, 600)
"""CPU seconds of each round: several times what its tests take without a mutant."""
AREAS = {
    "gateway/core": ("tests/unit/gateway/core/test_gateway_core.py", "tests/simulation/test_decision_digest.py"),
    "gateway/request": ("tests/unit/gateway/request/test_proxied.py", "tests/unit/gateway/door"),
    "controller/core": ("tests/unit/controller/core/test_controller_core.py", "tests/unit/controller"),
}
"""Folders that mutants are drawn from, each with the tests that reach most of it, and others that may reach it."""
KINDS = ("unit/gateway", "unit/controller", "unit/mesh", "unit/loadgen", "property", "simulation")
"""Folders of tests that may name a module; none that reads sources as text, where it would find the mutant itself."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", flags=re.MULTILINE)


def tests_below(place: Path) -> set[Path]:
    return {place} if place.suffix else set(place.rglob("test_*.py"))


def rounds_of(path: str, root: Path) -> Iterator[list[str]]:
    """Files of tests to run on a mutant of this module, one round after the other; each file is in one round."""
    unit = root / "tests/unit" / path
    named = re.compile(rf"\b{re.escape(path.removesuffix('.py').replace('/', '.'))}\b")
    tests = set().union(*(tests_below(root / "tests" / kind) for kind in KINDS))
    central, others = next(places for folder, places in AREAS.items() if path.startswith(folder))
    naming = {test for test in tests if named.search(test.read_text())}
    of_units = {test for test in naming if root / "tests/unit" in test.parents}
    wanted = (
        {unit.with_name(f"test_{unit.name}")} & tests,
        {root / central},
        set(unit.parent.glob("test_*.py")) | of_units,
        naming | tests_below(root / others),
    )
    ran: set[Path] = set()
    for files in wanted:
        yield sorted((str(file.relative_to(root)) for file in files - ran), reverse=True)  # simulations come last
        ran |= files


def first_failure(tree: Path, files: list[str], cpu_s: int) -> str:
    """First test of these that fails in the tree, or the limit that was reached; empty if all pass."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))

    options = ["-x", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-m", "not nightly", "--timeout=300"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        cwd=tree,
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"{cpu_s} s of CPU time"
    if done.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return ""
    failed = _FAILED.search(done.stdout)
    return failed[1] if failed else f"pytest, which ended with {done.returncode}: {done.stderr[-500:]}"
