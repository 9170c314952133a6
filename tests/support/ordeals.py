"""Worlds with many failures, one per seed, in which nothing may be found."""

from __future__ import annotations

from loadgen.simulator.chaos import ChaosKind, ChaosRun, Finding, run_chaos


def completed_without_finding(kind: ChaosKind, seeds: range) -> int:
    """Play a world for each seed. Raises AssertionError with what was found. Returns the number of completed
    requests.
    """
    outcomes = [run_chaos(seed, kind) for seed in seeds]
    assert [outcome for outcome in outcomes if isinstance(outcome, Finding)] == []
    return sum(outcome.outcomes.get("completed", 0) for outcome in outcomes if isinstance(outcome, ChaosRun))
