"""One mutant in a process of its own: `python -m tests.mutants.child NAME SEEDS [CPU_S]` plants it, runs the search for
it, and prints its fate as JSON. The search ends after `CPU_S` seconds of CPU time.

No effect of the mutant outlives the process.
"""

from __future__ import annotations

import json
import resource
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass

import click
import pytest

from gateway.core import gateway_core
from loadgen.simulator.chaos import ChaosKind, Finding, run_chaos
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


def found_by_chaos(seeds: int, kind: ChaosKind) -> Fate:
    """Play one world after the other until a fault is found."""
    for seed in range(1, seeds + 1):
        outcome = run_chaos(seed, kind)
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
    fate = found_by_tests(found.hunter) if found.hunter else found_by_chaos(int(seeds), found.kind)
    plant.check()
    click.echo(json.dumps(asdict(fate)))


if __name__ == "__main__":
    main(*sys.argv[1:])
