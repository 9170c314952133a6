from __future__ import annotations

import pytest

from gateway.core.features.disaggregated.admissions import AdmissionReason
from gateway.core.features.disaggregated.config import DecodePolicyName
from loadgen.bench.decode.ticks import STAGES, Backlog


@pytest.mark.parametrize("policy", [DecodePolicyName.BR_0, DecodePolicyName.BR_H, DecodePolicyName.ROUND_ROBIN])
def test_every_slot_that_gets_free_is_filled_and_as_many_wait_as_before(policy: DecodePolicyName) -> None:
    backlog = Backlog(policy, 4, 20)
    is_staged = policy is not DecodePolicyName.ROUND_ROBIN
    for _ in range(12):
        took = backlog.tick()
        assert ("prepare" in took) == is_staged
        assert 1 <= took["admitted"] <= 8
        assert took["tick"] >= sum(took.get(stage, 0.0) for stage in STAGES[:-1])
        figures = backlog._tier.figures(0)
        assert (figures.pooled, figures.free_slots, figures.ticks_degraded) == (20, 0, 0)


def test_with_more_free_slots_than_one_a_worker_they_are_filled_one_by_one() -> None:
    backlog = Backlog(DecodePolicyName.BR_0, 4, 40, free_slots=30)
    for _ in range(10):
        backlog.tick()
    admitted = backlog._tier.figures(0).admitted
    assert admitted[AdmissionReason.GREEDY] > 0
    assert admitted[AdmissionReason.SUBSET] + admitted[AdmissionReason.SINGLE] > 0
