"""One mutant in a process of its own: `python -m tests.mutants.child NAME SEEDS [CPU_S]` plants it, runs the search for
it, and prints its fate as JSON. The search ends after `CPU_S` seconds of CPU time.

No effect of the mutant outlives the process.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass

import click
import pytest

from gateway.core import gateway_core
from loadgen.simulator.chaos import (
    ChaosRun,
    Finding,
    run_chaos,
    run_controlled_chaos,
    run_mixed_models_chaos,
    run_moving_pools_chaos,
    run_pair_chaos,
    run_silent_chaos,
)
from tests.mutants.defects import MUTANTS
from tests.mutants.seams import Plant


@dataclass(frozen=True, slots=True)
class Fate:
    """Result for a mutant; both fields are empty for a survivor."""

    caught_by: str = ""
    where: str = ""


class _FirstFailure:
    """Plug-in for pytest that remembers the first failed test."""

    fate = Fate()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.fate.caught_by:
            path, _, test = report.nodeid.partition("::")
            self.fate = Fate(test.rpartition("::")[2], path)


def found_by_chaos(seeds: int, live_through: Callable[[int], ChaosRun | Finding] = run_chaos) -> Fate:
    """Play one world after the other until a fault is found."""
    for seed in range(1, seeds + 1):
        outcome = live_through(seed)
        if isinstance(outcome, Finding):
            return Fate(outcome.what, f"seed {seed}")
    return Fate()


def found_by_tests(hunter: str) -> Fate:
    """Run the tests of this name."""
    first_failure = _FirstFailure()
    with redirect_stdout(sys.stderr):
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", hunter], plugins=[first_failure])
    assert code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), f"{hunter} does not run"
    return first_failure.fate


def main(name: str, seeds: str, cpu_s: str = "") -> None:
    """Plant the mutant and print its fate.

    Raises AttributeError if the mutant's seam is gone, AssertionError if the mutant was never called.
    """
    assert str(gateway_core.__file__).endswith(".py"), "a compiled core has no seams"
    if cpu_s:
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s), int(cpu_s) + 1))
    found = MUTANTS[name]
    plant = Plant(found)
    live_through = run_pair_chaos if found.in_pair else run_controlled_chaos if found.in_controller else run_chaos
    if found.moves_pools:
        live_through = run_moving_pools_chaos
    if found.mixes_models:
        live_through = run_mixed_models_chaos
    if found.falls_silent:
        live_through = run_silent_chaos
    fate = found_by_tests(found.hunter) if found.hunter else found_by_chaos(int(seeds), live_through)
    plant.check()
    click.echo(json.dumps(asdict(fate)))


if __name__ == "__main__":
    main(*sys.argv[1:])
