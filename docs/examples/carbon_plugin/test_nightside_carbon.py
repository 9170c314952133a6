"""Tests that the author of a policy writes: conformance first, and then the promises of the policy."""

from __future__ import annotations

from nightside_carbon import LeastCarbon

from gateway.conformance.placement import conformance_faults


def test_it_may_decide() -> None:
    assert conformance_faults(LeastCarbon) == []
    assert conformance_faults(LeastCarbon, {"load_max": 2}) == []
