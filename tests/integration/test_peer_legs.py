"""Legs at a peer over real connections: what gRPC's own errors and limits become for a request.

The unit tests of `gateway.peers.client` have every other answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import pytest
from msgspec.structs import replace

from gateway.config.sections import PeeringConfig
from gateway.core.kernel.effects import EndRequest
from gateway.core.vocabulary import (
    GatewayId,
    LegResult,
    Outcome,
    RefusalReason,
    ReplicaId,
    RequestId,
)
from gateway.peers.client import PeerLegOpener
from gateway.request.legs import LegFailure, LegHead, OutboundRequest, RanAt, RequestSummary
from mesh.clock import Clock
from protos.mesh.v1 import peer_pb2 as pb
from tests.fakes import answer_frames
from tests.fakes.exchanging import FrameContext
from tests.fakes.peer import FakePeer, serve_fake_peer
from tests.support.core import EU, SECOND, peer_spec, profile
from tests.support.descriptors import no_descriptor_left
from tests.support.legs import OpenLeg
from tests.support.links import peer_link
from tests.support.orders import forward_order

OUTBOUND = OutboundRequest(
    profile("r-1"), "/v1/completions", (("content-type", "application/json"),), b'{"model": "llama", "prompt": "hello"}'
)
HEAD = LegHead(200, (("content-type", "text/event-stream"),), RanAt(ReplicaId("eu-a"), EU))
ENDED = answer_frames.ended(EndRequest(RequestId("r-1"), Outcome.COMPLETED, "", 1), RequestSummary(ran_at=HEAD.ran_at))
SPEC = peer_spec("eu-1", EU)


@pytest.fixture
async def peer() -> AsyncIterator[FakePeer]:
    async with serve_fake_peer() as fake:
        yield fake


class Origin:
    """Gateway that forwards."""

    def __init__(self, peer: FakePeer, peering: PeeringConfig) -> None:
        self.link = peer_link(peer.config(SPEC), peering)
        self.opener = PeerLegOpener({SPEC.gateway_id: self.link}, GatewayId("us-1"), Clock())

    def open(self) -> OpenLeg:
        leg = OpenLeg()
        leg.handle = self.opener.open(forward_order(), OUTBOUND, leg)
        return leg

    async def read(self) -> OpenLeg:
        """Forward, and wait for the end. Raises LegFailure."""
        leg = self.open()
        await leg.until_over()
        return leg

    async def failure(self) -> LegFailure:
        with pytest.raises(LegFailure) as caught:
            await self.read()
        return caught.value


MakeOrigin = Callable[[PeeringConfig], Origin]


@pytest.fixture
async def make_origin(peer: FakePeer) -> AsyncIterator[MakeOrigin]:
    made: list[Origin] = []

    def make(peering: PeeringConfig) -> Origin:
        made.append(Origin(peer, peering))
        return made[-1]

    yield make
    for origin in made:
        await origin.link.close()


@pytest.fixture
async def origin(make_origin: MakeOrigin) -> Origin:
    return make_origin(PeeringConfig())


def says(*messages: pb.AnswerFrame) -> Callable[[pb.ForwardRequest, FrameContext], Awaitable[None]]:
    async def answer(request: pb.ForwardRequest, context: FrameContext) -> None:
        for message in messages:
            await context.write(message)

    return answer


async def test_an_accepted_forward_streams_its_body_unchanged(peer: FakePeer, origin: Origin) -> None:
    asked: list[pb.ForwardRequest] = []

    async def answer(request: pb.ForwardRequest, context: FrameContext) -> None:
        asked.append(request)
        parts = (answer_frames.head(HEAD), answer_frames.data(b"data: 1\n\nda"), answer_frames.data(b"ta: \xff\n\n"))
        await says(answer_frames.accepted(), *parts, ENDED)(request, context)

    peer.forwarded = answer
    leg = await origin.read()
    assert leg.head == replace(HEAD, attempt=1)
    assert leg.pieces == [b"data: 1\n\nda", b"ta: \xff\n\n"]
    assert leg.told == ["accepted", "head", "data", "data", "end"]
    (request,) = asked
    assert (request.body, request.path, request.origin_gateway_id) == (OUTBOUND.body, OUTBOUND.path, "us-1")
    assert 29_000 < request.deadline_ms <= 30_000


async def test_a_grpc_error_is_a_failure(peer: FakePeer, origin: Origin) -> None:
    async def answer(request: pb.ForwardRequest, context: FrameContext) -> None:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "who are you")

    peer.forwarded = answer
    assert await origin.failure() == LegFailure(LegResult.FAILED, "PERMISSION_DENIED: who are you")


async def test_a_dead_peer_is_a_failure(peer: FakePeer, make_origin: MakeOrigin, unused_tcp_port: int) -> None:
    peer.port = unused_tcp_port
    failure = await make_origin(PeeringConfig()).failure()
    assert failure.result is LegResult.FAILED
    assert failure.detail.startswith("UNAVAILABLE")


class TestErrorsOfOurs:
    """Internal errors, which do not count against the peer."""

    async def test_a_forward_that_the_peer_finds_malformed_is_tried_elsewhere(
        self, peer: FakePeer, origin: Origin
    ) -> None:
        async def answer(request: pb.ForwardRequest, context: FrameContext) -> None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "header x is too long")

        peer.forwarded = answer
        detail = "INVALID_ARGUMENT: header x is too long"
        assert await origin.failure() == LegFailure(LegResult.REFUSED, detail, RefusalReason.BUSY)

    async def test_an_answer_too_large_for_us_is_the_peer_s_failure(
        self, peer: FakePeer, make_origin: MakeOrigin
    ) -> None:
        peer.forwarded = says(answer_frames.accepted(), answer_frames.head(HEAD), answer_frames.data(b"x" * 5000))
        failure = await make_origin(PeeringConfig(message_max_bytes=2000)).failure()
        assert failure.result is LegResult.FAILED
        assert "larger than max" in failure.detail

    async def test_no_descriptor_left_for_a_connection(self, peer: FakePeer, make_origin: MakeOrigin) -> None:
        peer.forwarded = says(answer_frames.accepted(), answer_frames.head(HEAD), ENDED)
        origin = make_origin(PeeringConfig(reconnect_min_ns=SECOND // 100, reconnect_max_ns=SECOND // 50))
        with no_descriptor_left():
            failure = await origin.failure()
        assert failure.result is LegResult.INTERNAL
        assert "Too many open files" in failure.detail
        while True:  # repeats until it has connected again
            try:
                assert (await origin.read()).pieces == []
                break
            except LegFailure:
                continue

    async def test_a_peer_that_says_so_has_failed_itself(self, peer: FakePeer, origin: Origin) -> None:
        async def answer(request: pb.ForwardRequest, context: FrameContext) -> None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Too many open files")

        peer.forwarded = answer
        assert await origin.failure() == LegFailure(LegResult.FAILED, "UNAVAILABLE: Too many open files")

    async def test_a_channel_that_we_closed_under_a_forward_is_no_failure_of_the_peer(
        self, peer: FakePeer, origin: Origin
    ) -> None:
        arrived = asyncio.Event()

        async def answer(request: pb.ForwardRequest, context: FrameContext) -> None:
            arrived.set()
            await asyncio.Event().wait()

        peer.forwarded = answer
        leg = origin.open()
        await arrived.wait()
        await origin.link.close()
        with pytest.raises(LegFailure) as caught:
            await leg.until_over()
        assert caught.value.result is LegResult.INTERNAL
