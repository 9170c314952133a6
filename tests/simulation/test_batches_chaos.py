"""Worlds in which files of requests are handed in and their gateways crash, stall and break off: each line has one
result, and no invariant breaks."""

from __future__ import annotations

import pytest

from loadgen.simulator.chaos import ChaosKind, chaos_scenario
from loadgen.simulator.world import World
from tests.support.nightly import seeds_of
from tests.support.ordeals import completed_without_finding


@pytest.mark.slow
@pytest.mark.parametrize("seeds", seeds_of(300, few=6, at_once=10))
def test_nothing_is_found(seeds: range) -> None:
    assert completed_without_finding(ChaosKind.BATCHES, seeds) > 5 * len(seeds)


def test_batches_are_taken_over_and_some_expire_in_these_worlds() -> None:
    scenarios = [chaos_scenario(seed, ChaosKind.BATCHES) for seed in range(1, 10)]
    reports = [each for one in scenarios for each in World(one, one.runs[0]).play().batches]
    assert any(each.takeovers for each in reports)
    assert any(each.expired for each in reports)
    assert any(each.is_kept for each in reports)
