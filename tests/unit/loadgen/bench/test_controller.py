"""The bench of the controller's core: each figure is reported, and a snapshot grows with the number of replicas."""

from __future__ import annotations

from loadgen.bench.controller import _measure


def test_each_size_has_its_figures_and_more_replicas_a_longer_snapshot() -> None:
    small, large = _measure(4, 2), _measure(40, 2)
    assert set(small) == {"report_us", "probe_us", "death_ms", "recovery_ms", "snapshot_bytes", "push_ms"}
    assert min(small.values()) > 0
    assert large["snapshot_bytes"] > 5 * small["snapshot_bytes"]
