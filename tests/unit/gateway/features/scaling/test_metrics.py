from __future__ import annotations

from prometheus_client import CollectorRegistry

from gateway.core.features.scaling.vocabulary import PoolKey, ScalingReason, Want
from gateway.core.vocabulary import DEFAULT_POOL, ModelName, RegionName
from gateway.features.scaling.metrics import ScalingMetrics

WANT = Want(
    RegionName("eu"),
    PoolKey(ModelName("m"), DEFAULT_POOL),
    wanted=3,
    reason=ScalingReason.BORROWS,
    ready=2,
    alone=4,
    offered=31_250,
    borrowed=1_500,
    lent=0,
    missing=17_000,
    least=1,
    most=3,
    concurrency=16,
)


def test_each_pool_says_how_many_are_wanted_and_what_that_rests_on() -> None:
    registry = CollectorRegistry()
    metrics = ScalingMetrics(registry, lambda: [WANT])
    metrics.changes.add("eu", "m", "default", "load")
    metrics.messages.add("delivered")

    def value(name: str, **more: str) -> float | None:
        return registry.get_sample_value(f"nightside_{name}", {"region": "eu", "model": "m", "pool": "default"} | more)

    assert value("replicas_wanted") == 3
    assert value("replicas_wanted_alone") == 4
    assert value("replicas_ready") == 2
    assert value("replicas_missing") == 2
    assert value("scaling_offered_requests") == 31.25
    assert value("scaling_borrowed_requests") == 1.5
    assert value("scaling_lent_requests") == 0
    assert value("replicas_wanted_changes_total", reason="load") == 1
    assert registry.get_sample_value("nightside_scaling_messages_total", {"result": "delivered"}) == 1


def test_where_nothing_is_wanted_there_are_only_names() -> None:
    registry = CollectorRegistry()
    ScalingMetrics(registry, tuple)
    assert {len(family.samples) for family in registry.collect()} == {0}
