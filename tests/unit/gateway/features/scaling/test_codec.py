from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.core.features.scaling.vocabulary import PoolKey, PoolLoad, ScalingReport, Way
from gateway.core.vocabulary import DEFAULT_POOL, ModelName, RegionName
from gateway.features.scaling.codec import add_scaling, read_scaling
from mesh.wire import WireError
from protos.mesh.v1 import peer_pb2 as pb

LOAD = PoolLoad(
    PoolKey(ModelName("Qwen/Qwen3-8B"), DEFAULT_POOL),
    ready=2,
    wanted=3,
    concurrency=16,
    least=1,
    most=8,
    offered=31_250,
    pinned=1_000,
    queue=4,
    price=2_500_000,
    is_alone=True,
)
REPORT = ScalingReport((LOAD,), (Way(RegionName("eu"), 80_000_000),), (RegionName("eu"), RegionName("ap")))


def told(report: ScalingReport) -> pb.SubscribeResponse:
    message = pb.SubscribeResponse(gateway_id="us-1")
    add_scaling(message, report)
    return pb.SubscribeResponse.FromString(message.SerializeToString())


def test_what_is_told_arrives_as_it_was_told() -> None:
    assert read_scaling(told(REPORT)) == REPORT


def test_who_says_nothing_of_replicas_says_nothing_else_either() -> None:
    assert told(ScalingReport((), REPORT.ways, REPORT.accepts)).ByteSize() == told(ScalingReport()).ByteSize()
    assert read_scaling(told(ScalingReport())) == ScalingReport()


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda message: setattr(message.pool_loads[0], "concurrency", 0), "so many requests at once"),
        (lambda message: setattr(message.pool_loads[0], "least", 9), "least and most"),
        (lambda message: setattr(message.pool_loads[0], "most", 10**6), "least and most"),
        (lambda message: setattr(message.pool_loads[0], "wanted", 9), "more is wanted"),
        (lambda message: setattr(message.pool_loads[0], "ready", 10**6), "no so many replicas"),
        (lambda message: setattr(message.pool_loads[0], "pinned", 31_251), "so many requests"),
        (lambda message: setattr(message.pool_loads[0], "offered", 2**60), "so many requests"),
        (lambda message: setattr(message.pool_loads[0], "queue", 2**31), "so long"),
        (lambda message: setattr(message.pool_loads[0], "price", 2**60), "such a price"),
        (lambda message: setattr(message.pool_loads[0], "model", "a\nb"), "no name of a model"),
        (lambda message: setattr(message.pool_loads[0], "pool", "a b"), "pool_loads.pool is not a pool's name"),
        (lambda message: setattr(message.ways[0], "rtt_us", 2**40), "no way is so long"),
        (lambda message: message.accepts.append("a b"), "accepts is not an id"),
        (lambda message: message.accepts.extend(["a"] * 300), "too many accepts"),
        (lambda message: message.ways.extend([pb.Way(region="a")] * 300), "too many ways"),
        (lambda message: message.pool_loads.extend([message.pool_loads[0]] * 64), "too many pool_loads"),
    ],
)
def test_what_no_gateway_may_tell_is_a_fault(spoil: Callable[[pb.SubscribeResponse], object], fault: str) -> None:
    message = told(REPORT)
    spoil(message)
    with pytest.raises(WireError, match=fault):
        read_scaling(message)
