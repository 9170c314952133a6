from __future__ import annotations

from collections import Counter

from gateway.core.kernel.config import (
    PlacementPolicy,
)
from tests.support.core import started
from tests.support.placement import desk_with


def test_power_of_two_balances_better_than_chance() -> None:
    spreads = []
    for policy in (PlacementPolicy.RANDOM, PlacementPolicy.POWER_OF_TWO):
        one = desk_with(policy, replicas=8)
        counts = Counter(started(one.ask(f"q{i}"))[0] for i in range(400))
        spreads.append(max(counts.values()) - min(counts.values()))
    assert spreads[1] < spreads[0]
