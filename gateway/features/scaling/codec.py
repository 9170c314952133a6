"""Converts the scaling reports that gateways exchange between protobuf messages and values. They travel with
heartbeats.

No value from the wire is used unchecked: a message that breaks a bound raises WireError, which ends the call.
"""

from __future__ import annotations

from gateway.core.features.scaling.vocabulary import WHOLE, PoolKey, PoolLoad, ScalingReport, Way
from gateway.core.vocabulary import MODEL_NAME_LENGTH_MAX, ModelName, RegionName
from gateway.features.scaling.config import CONCURRENCY_MAX, REPLICAS_MAX
from mesh.wire import MICROSECOND_NS, read_id, read_pool_name, read_text, require, require_few
from protos.mesh.v1 import peer_pb2 as pb

POOLS_MAX = 64
REGIONS_MAX = 256
REQUESTS_MAX = 10**8
"""Requests of one region's clients at the same time."""
PRICE_MAX = 10**12
RTT_MAX_US = 60 * 10**6


def add_scaling(message: pb.SubscribeResponse, report: ScalingReport) -> None:
    """Add the report to a heartbeat about to be sent; an empty report adds nothing."""
    if not report.loads:
        return
    message.pool_loads.extend(
        pb.PoolLoad(
            model=each.key.model,
            pool=each.key.pool,
            ready=min(each.ready, REPLICAS_MAX),
            wanted=each.wanted,
            concurrency=each.concurrency,
            least=each.least,
            most=each.most,
            offered=min(each.offered, REQUESTS_MAX * WHOLE),
            pinned=min(each.pinned, REQUESTS_MAX * WHOLE),
            queue=min(each.queue, REQUESTS_MAX),
            price=min(each.price, PRICE_MAX),
            is_alone=each.is_alone,
        )
        for each in report.loads
    )
    message.ways.extend(
        pb.Way(region=each.region, rtt_us=min(each.rtt_ns // MICROSECOND_NS, RTT_MAX_US))
        for each in report.ways[:REGIONS_MAX]
    )
    message.accepts.extend(report.accepts[:REGIONS_MAX])


def read_scaling(message: pb.SubscribeResponse) -> ScalingReport:
    """The peer's scaling report; empty if the peer does not scale replicas or is of an older version."""
    require_few(message.pool_loads, "pool_loads", POOLS_MAX)
    require_few(message.ways, "ways", REGIONS_MAX)
    require_few(message.accepts, "accepts", REGIONS_MAX)
    return ScalingReport(
        tuple(_load(each) for each in message.pool_loads),
        tuple(_way(each) for each in message.ways),
        tuple(RegionName(read_id(each, "accepts")) for each in message.accepts),
    )


def _load(message: pb.PoolLoad) -> PoolLoad:
    require(0 < message.concurrency <= CONCURRENCY_MAX, "no replica runs so many requests at once")
    require(message.least <= message.most <= REPLICAS_MAX, "least and most are no numbers of replicas")
    require(message.wanted <= message.most, "more is wanted than there may be")
    require(message.ready <= REPLICAS_MAX, "there are no so many replicas")
    require(message.pinned <= message.offered <= REQUESTS_MAX * WHOLE, "no region has so many requests")
    require(message.queue <= REQUESTS_MAX, "no queue is so long")
    require(message.price <= PRICE_MAX, "no replica has such a price")
    model = read_text(message.model, "pool_loads.model", MODEL_NAME_LENGTH_MAX)
    require(bool(model) and model.isprintable(), "pool_loads.model is no name of a model")
    return PoolLoad(
        PoolKey(ModelName(model), read_pool_name(message.pool, "pool_loads.pool")),
        message.ready,
        message.wanted,
        message.concurrency,
        message.least,
        message.most,
        message.offered,
        message.pinned,
        message.queue,
        message.price,
        message.is_alone,
    )


def _way(message: pb.Way) -> Way:
    require(message.rtt_us <= RTT_MAX_US, "no way is so long")
    return Way(RegionName(read_id(message.region, "ways.region")), message.rtt_us * MICROSECOND_NS)
