from __future__ import annotations

from gateway.core.kernel.config import (
    PlacementPolicy,
)
from tests.support.core import started
from tests.support.placement import desk_with


def test_round_robin_takes_turns() -> None:
    one = desk_with(PlacementPolicy.ROUND_ROBIN, replicas=3)
    assert [started(one.ask(f"q{i}"))[0] for i in range(6)] == ["r0", "r1", "r2", "r0", "r1", "r2"]
