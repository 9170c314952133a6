"""Worlds with many failures, whose engines take requests of different lengths: no request is lost, none is sent to an
engine that takes less than the request may need, and none that fits is refused as too long.
"""

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
