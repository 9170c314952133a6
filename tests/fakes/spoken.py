"""Messages between gateways, one of each kind, made by the codec of the version in which this module runs.

`frozen/peer.json` holds the bytes, in hexadecimal, that it made in the first version in which all forwards share
streams. The file is never generated again; every message here must be made alike in both versions.
"""

from __future__ import annotations

from google.protobuf.message import Message
from msgspec.structs import replace

from gateway.core.kernel.effects import EndRequest
from gateway.core.vocabulary import (
    DEFAULT_POOL,
    ControlVersion,
    GatewayId,
    LoadReport,
    ModelCapacity,
    ModelQueue,
    Outcome,
    PlaceRule,
    RefusalReason,
    RegionsWithin,
    ReplicaId,
    RequestId,
    RequestProfile,
    ResidencyStamp,
    TenantName,
)
from gateway.peers import codec
from gateway.request.legs import LegHead, OutboundRequest, RanAt, RequestSummary
from tests.fakes import answer_frames
from tests.support.core import AP, EU, MODEL, SECOND, US
from tests.support.orders import forward_order

BODY = b'{"model":"llama","messages":[{"role":"user","content":"\xff"}]}'
PROFILE = RequestProfile(
    RequestId("r-1"), MODEL, TenantName("acme corp"), 40, bytes(range(16)), 16, "session", stream=True
)
STAMP = ResidencyStamp(
    US,
    PROFILE.tenant,
    PlaceRule(
        frozenset({US.jurisdiction}),
        frozenset({EU.region}),
        frozenset({AP.region}),
        (RegionsWithin(frozenset({AP.region}), frozenset({AP.jurisdiction})),),
    ),
    "abc",
)
REPORT = LoadReport(
    GatewayId("us-1"),
    US,
    sequence=7,
    accepting=True,
    assignment_version=3,
    policy_digest="abc",
    capacities=(
        ModelCapacity(MODEL, DEFAULT_POOL, EU, 4, 2, load=17, backlog_bytes=70_000, free_tokens=0, room=2, spare=2),
    ),
    queues=(ModelQueue(MODEL, 9),),
    control=ControlVersion(2, 2**40),
)
HEAD = LegHead(200, (("content-type", "text/event-stream"),), RanAt(ReplicaId("eu-a"), EU))
END = EndRequest(PROFILE.request_id, Outcome.COMPLETED, "fine", 1)


def spoken() -> dict[str, Message]:
    request = OutboundRequest(PROFILE, "/v1/chat/completions", (("content-type", "application/json"),), BODY)
    order = replace(forward_order(PROFILE.request_id, stamp=STAMP), deadline_ns=7 * SECOND)
    summary = RequestSummary(ran_at=HEAD.ran_at, prompt_tokens=5)
    return {
        "subscribe": codec.subscribe_request(GatewayId("us-1"), US),
        "heartbeat": codec.load_to_pb(REPORT, age_ns=1 * SECOND),
        "forward": codec.forward_to_pb(order, request, GatewayId("us-1"), now_ns=2 * SECOND),
        "accepted": answer_frames.accepted(),
        "refused": answer_frames.refused(RefusalReason.QUEUE_FULL, "full"),
        "head": answer_frames.head(HEAD),
        "data": answer_frames.data(b"data: [DONE]\n\n"),
        "ended": answer_frames.ended(END, summary),
        "explain": codec.explain_request(GatewayId("us-1"), PROFILE.request_id),
        "ownership": codec.ownership_request(GatewayId("us-1")),
    }
