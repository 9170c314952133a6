"""Worlds in which much goes wrong where engines take requests of different lengths: nothing is lost, nobody is sent
where less is taken than it may come to, and nobody is too long who fits."""

from __future__ import annotations

import pytest

from loadgen.simulator.chaos import Finding, endure_pools

SEEDS_AT_ONCE = 10


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, 101, SEEDS_AT_ONCE))
def test_nothing_is_found(first: int) -> None:
    outcomes = [endure_pools(seed) for seed in range(first, first + SEEDS_AT_ONCE)]
    assert [outcome for outcome in outcomes if isinstance(outcome, Finding)] == []
    assert sum(outcome.outcomes.get("completed", 0) for outcome in outcomes if not isinstance(outcome, Finding)) > 100


def test_the_first_of_them_ends_well_and_twice_the_same() -> None:
    one, other = endure_pools(22), endure_pools(22)

    assert not isinstance(one, Finding)
    assert one == other
