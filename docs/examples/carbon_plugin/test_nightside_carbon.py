"""What the author of a policy tests: that it may decide at all, and then whatever it promises."""

from __future__ import annotations

from nightside_carbon import LeastCarbon

from gateway.conformance.placement import conformance_faults


def test_it_may_decide() -> None:
    assert conformance_faults(LeastCarbon) == []
    assert conformance_faults(LeastCarbon, {"load_max": 2}) == []
