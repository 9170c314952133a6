"""The bench of decisions: under each policy every request is placed at once, on replicas of its own, and then
recorded.
"""

from __future__ import annotations

import pytest

from gateway.core.kernel.config import PlacementPolicy
from loadgen.bench.decisions import _POLICIES, _RUNNING, _Bench


@pytest.mark.parametrize("policy", _POLICIES)
@pytest.mark.parametrize("recorded", [0, 5])
def test_nobody_waits_and_a_decision_takes_some_time(
    policy: PlacementPolicy, recorded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.bench.decisions._REQUESTS", 40)
    bench = _Bench(policy, 16, recorded)
    assert bench.round() > 0
    assert len(bench._running) == 16 * _RUNNING
    assert (len(bench._core.waiting), len(bench._core.requests)) == (0, 16 * _RUNNING)
