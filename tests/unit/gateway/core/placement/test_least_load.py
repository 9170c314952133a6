from __future__ import annotations

from collections import Counter

from gateway.core.kernel.config import (
    PlacementPolicy,
)
from tests.support.core import started
from tests.support.placement import desk_with


def test_least_load_evens_out() -> None:
    one = desk_with(PlacementPolicy.LEAST_LOAD, replicas=3)
    assert set(Counter(started(one.ask(f"q{i}"))[0] for i in range(30)).values()) == {10}
