"""Tests that the author of a policy writes: conformance first, and then the promises of the policy."""

from __future__ import annotations

from nightside_packed import Packed

from gateway.conformance.placement import conformance_faults


def test_it_may_decide() -> None:
    assert conformance_faults(Packed) == []
    assert conformance_faults(Packed, {"full_at": 2}) == []
