"""Worlds with many failures, with prefill and decode in separate engines: no request is lost, every kept block is
released, and no decode worker gets an ordinary request.
"""

from __future__ import annotations

import pytest

from loadgen.simulator.chaos import Finding, endure_disaggregated

SEEDS_AT_ONCE = 10


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, 101, SEEDS_AT_ONCE))
def test_nothing_is_found(first: int) -> None:
    outcomes = [endure_disaggregated(seed) for seed in range(first, first + SEEDS_AT_ONCE)]
    assert [outcome for outcome in outcomes if isinstance(outcome, Finding)] == []
    assert sum(outcome.outcomes.get("completed", 0) for outcome in outcomes if not isinstance(outcome, Finding)) > 100


def test_the_first_of_them_ends_well_and_twice_the_same() -> None:
    one, other = endure_disaggregated(29), endure_disaggregated(29)

    assert not isinstance(one, Finding)
    assert one == other
