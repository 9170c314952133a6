from __future__ import annotations

from collections import Counter

import pytest

from gateway.core.kernel.config import (
    PlacementPolicy,
)
from tests.support.core import started
from tests.support.placement import desk_with


@pytest.mark.parametrize("policy", [PlacementPolicy.RANDOM, PlacementPolicy.POWER_OF_TWO])
def test_chance_reaches_everybody(policy: PlacementPolicy) -> None:
    one = desk_with(policy)
    counts = Counter(started(one.ask(f"q{i}"))[0] for i in range(200))
    assert len(counts) == 4
    assert min(counts.values()) > 20
