"""Two hundred worlds with many failures of a controller: no policy is broken, no replica moves while it is frozen,
every name has an answer, each replica has one owner, and all replicas return to their home gateways.
"""

from __future__ import annotations

import pytest

from loadgen.simulator.chaos import Finding, endure_controlled, endure_pair

SEEDS_AT_ONCE = 20


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, 201, SEEDS_AT_ONCE))
def test_nothing_is_found(first: int) -> None:
    outcomes = [endure_controlled(seed) for seed in range(first, first + SEEDS_AT_ONCE)]
    assert [outcome for outcome in outcomes if isinstance(outcome, Finding)] == []
    assert sum(outcome.outcomes.get("completed", 0) for outcome in outcomes if not isinstance(outcome, Finding)) > 1000


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, 101, SEEDS_AT_ONCE))
def test_nothing_is_found_with_two_of_which_one_leads(first: int) -> None:
    outcomes = [endure_pair(seed) for seed in range(first, first + SEEDS_AT_ONCE)]
    assert [outcome for outcome in outcomes if isinstance(outcome, Finding)] == []
    assert sum(outcome.outcomes.get("completed", 0) for outcome in outcomes if not isinstance(outcome, Finding)) > 1000
