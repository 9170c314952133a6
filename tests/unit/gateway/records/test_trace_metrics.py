from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from gateway.records.trace_metrics import TraceMetrics


@pytest.mark.parametrize("is_there", [True, False])
def test_every_series_is_there_whether_or_not_anything_is_traced(is_there: bool) -> None:
    registry = CollectorRegistry()
    metrics = TraceMetrics(registry)
    if is_there:
        metrics.follow(FakeOutbox())
    expected = 5.0 if is_there else 0.0
    for name, labels in (
        ("nightside_traces_exported_total", {}),
        ("nightside_traces_dropped_total", {"reason": "full"}),
        ("nightside_traces_dropped_total", {"reason": "refused"}),
        ("nightside_traces_waiting", {}),
    ):
        assert registry.get_sample_value(name, labels) == expected


class FakeOutbox:
    exported = refused = overflowed = 5

    def __len__(self) -> int:
        return 5
