"""Two hundred worlds with many failures: no request is lost, answered twice or leaves its regions, and every request
after everything has healed is served.
"""

from __future__ import annotations

import pytest

from loadgen.simulator.chaos import Finding, endure

SEEDS_AT_ONCE = 20


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, 201, SEEDS_AT_ONCE))
def test_nothing_is_found(first: int) -> None:
    outcomes = [endure(seed) for seed in range(first, first + SEEDS_AT_ONCE)]
    assert [outcome for outcome in outcomes if isinstance(outcome, Finding)] == []
    assert sum(outcome.outcomes.get("completed", 0) for outcome in outcomes if not isinstance(outcome, Finding)) > 100
