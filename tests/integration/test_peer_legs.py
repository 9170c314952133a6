"""Legs at a peer over real connections: what its answers, refusals and faults become for a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import pytest
from msgspec.structs import replace

from gateway.config.sections import PeeringConfig
from gateway.core.kernel.effects import EndRequest, StartLeg
from gateway.core.vocabulary import (
    GatewayId,
    LegResult,
    Outcome,
    RefusalReason,
    ReplicaId,
    RequestId,
)
from gateway.peers.client import PeerLegOpener
from gateway.request.legs import STOPPED, LegFailure, LegHead, OutboundRequest, RanAt, RequestSummary
from mesh.clock import Clock
from protos.mesh.v1 import peer_pb2 as pb
from tests.fakes import answer_frames
from tests.fakes.exchanging import FrameContext
from tests.fakes.peer import FakePeer, serve_fake_peer
from tests.support.core import AP, EU, SECOND, peer_spec, profile
from tests.support.descriptors import no_descriptor_left
from tests.support.legs import OpenLeg
from tests.support.links import peer_link
from tests.support.orders import forward_order

OUTBOUND = OutboundRequest(
    profile("r-1"), "/v1/completions", (("content-type", "application/json"),), b'{"model": "llama", "prompt": "hello"}'
)
HEAD = LegHead(200, (("content-type", "text/event-stream"),), RanAt(ReplicaId("eu-a"), EU))
SPEC = peer_spec("eu-1", EU)


@pytest.fixture
async def peer() -> AsyncIterator[FakePeer]:
    async with serve_fake_peer() as fake:
        yield fake


class Origin:
    """Gateway that forwards."""

    def __init__(self, peer: FakePeer, peering: PeeringConfig) -> None:
        self.link = peer_link(peer.config(SPEC), peering)
        self.violations: list[tuple[str, str, RanAt]] = []
        self.opener = PeerLegOpener(
            {SPEC.gateway_id: self.link},
            GatewayId("us-1"),
            Clock(),
            on_violation=lambda *violation: self.violations.append(violation),
        )

    def open(self, to: StartLeg | None = None) -> OpenLeg:
        leg = OpenLeg()
        leg.handle = self.opener.open(to or forward_order(), OUTBOUND, leg)
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


def ended(outcome: Outcome, detail: str = "") -> pb.AnswerFrame:
    return answer_frames.ended(EndRequest(RequestId("r-1"), outcome, detail, 1), RequestSummary(ran_at=HEAD.ran_at))


ELSEWHERE = RanAt(ReplicaId("ap-a"), AP)
"""Place that the stamp of `forward_order` does not allow."""


async def test_an_answer_from_where_the_stamp_forbids_goes_no_further(peer: FakePeer, origin: Origin) -> None:
    head = answer_frames.head(replace(HEAD, ran_at=ELSEWHERE))
    peer.forwarded = says(answer_frames.accepted(), head, answer_frames.data(b"data: 1\n\n"), ended(Outcome.COMPLETED))
    failure = await origin.failure()
    assert failure.result is LegResult.FAILED
    assert AP.region in failure.detail
    assert origin.violations == [("eu-1", "r-1", ELSEWHERE)]


async def test_an_end_that_tells_of_such_a_place_ends_the_answer(peer: FakePeer, origin: Origin) -> None:
    last = answer_frames.ended(EndRequest(RequestId("r-1"), Outcome.COMPLETED, "", 1), RequestSummary(ran_at=ELSEWHERE))
    peer.forwarded = says(answer_frames.accepted(), answer_frames.head(HEAD), answer_frames.data(b"data: 1\n\n"), last)
    failure = await origin.failure()
    assert failure.result is LegResult.FAILED
    assert origin.violations == [("eu-1", "r-1", ELSEWHERE)]


async def test_an_accepted_forward_streams_its_body_unchanged(peer: FakePeer, origin: Origin) -> None:
    asked: list[pb.ForwardRequest] = []

    async def answer(request: pb.ForwardRequest, context: FrameContext) -> None:
        asked.append(request)
        parts = (answer_frames.head(HEAD), answer_frames.data(b"data: 1\n\nda"), answer_frames.data(b"ta: \xff\n\n"))
        await says(answer_frames.accepted(), *parts, ended(Outcome.COMPLETED))(request, context)

    peer.forwarded = answer
    leg = await origin.read()
    assert leg.head == replace(HEAD, attempt=1)
    assert leg.pieces == [b"data: 1\n\nda", b"ta: \xff\n\n"]
    assert leg.told == ["accepted", "head", "data", "data", "end"]
    (request,) = asked
    assert (request.body, request.path, request.origin_gateway_id) == (OUTBOUND.body, OUTBOUND.path, "us-1")
    assert 29_000 < request.deadline_ms <= 30_000


async def test_acceptance_is_told_before_the_head_is_there(peer: FakePeer, origin: Origin) -> None:
    go_on = asyncio.Event()

    async def answer(request: pb.ForwardRequest, context: FrameContext) -> None:
        await context.write(answer_frames.accepted())
        await go_on.wait()
        await says(answer_frames.head(HEAD), ended(Outcome.COMPLETED))(request, context)

    peer.forwarded = answer
    leg = origin.open()
    await leg.until(lambda: leg.told == ["accepted"])
    go_on.set()
    await leg.until_over()
    assert leg.told == ["accepted", "head", "end"]


async def test_a_client_error_is_an_answer(peer: FakePeer, origin: Origin) -> None:
    head = replace(HEAD, status=400)
    peer.forwarded = says(
        answer_frames.accepted(), answer_frames.head(head), answer_frames.data(b"{}"), ended(Outcome.CLIENT_ERROR)
    )
    leg = await origin.read()
    assert (leg.head.status, leg.body) == (400, b"{}")


async def test_a_refusal_is_typed_and_nothing_was_accepted(peer: FakePeer, origin: Origin) -> None:
    peer.forwarded = says(answer_frames.refused(RefusalReason.QUEUE_FULL, "10 wait"))
    leg = origin.open()
    with pytest.raises(LegFailure) as caught:
        await leg.until_over()
    assert caught.value == LegFailure(LegResult.REFUSED, "10 wait", RefusalReason.QUEUE_FULL)
    assert leg.told == ["failed"], "nothing was accepted"


@pytest.mark.parametrize(
    "outcome,refusal",
    [
        (Outcome.REJECTED_UNKNOWN_MODEL, RefusalReason.UNKNOWN_MODEL),
        (Outcome.REJECTED_RESIDENCY_INGRESS, RefusalReason.RESIDENCY_NOT_ACCEPTED),
        (Outcome.REJECTED_RESIDENCY_PROCESSING, RefusalReason.RESIDENCY_STAMP),
        (Outcome.REJECTED_QUEUE_FULL, RefusalReason.QUEUE_FULL),
        (Outcome.REJECTED_DRAINING, RefusalReason.DRAINING),
        (Outcome.REJECTED_UNKNOWN_RESPONSE, RefusalReason.UNKNOWN_RESPONSE),
        (Outcome.EXPIRED_IN_QUEUE, RefusalReason.BUSY),
    ],
)
async def test_a_change_of_mind_is_a_refusal(
    peer: FakePeer, origin: Origin, outcome: Outcome, refusal: RefusalReason
) -> None:
    peer.forwarded = says(answer_frames.accepted(), ended(outcome, "why"))
    assert await origin.failure() == LegFailure(LegResult.REFUSED, "why", refusal, notes={"resume": (0, 0)})


HEAD_SENT = (answer_frames.accepted(), answer_frames.head(HEAD), answer_frames.data(b"data: 1\n\n"))


@pytest.mark.parametrize(
    "messages,detail",
    [
        ((), "closed the forward without a last word"),
        ((answer_frames.head(HEAD),), "first word was head"),
        ((pb.AnswerFrame(),), "first word was None"),
        ((answer_frames.accepted(),), "closed the forward without a last word"),
        ((answer_frames.accepted(), answer_frames.data(b"x")), "sent data before a head"),
        ((answer_frames.accepted(), pb.AnswerFrame(head=pb.Head(status=7))), "7 is not a final HTTP status"),
        ((answer_frames.accepted(), pb.AnswerFrame(head=pb.Head(status=204))), "204 has no body to be sent with"),
        ((answer_frames.accepted(), pb.AnswerFrame(head=pb.Head(status=304))), "304 has no body to be sent with"),
        ((answer_frames.accepted(), ended(Outcome.FAILED_BEFORE_FIRST_BYTE, "engine died")), "engine died"),
        ((answer_frames.accepted(), ended(Outcome.COMPLETED)), "ended as completed"),
        ((pb.AnswerFrame(refused=pb.Refused(reason="")),), "RefusalReason is not an id"),
        (HEAD_SENT, "closed the forward without a last word"),
        ((*HEAD_SENT, ended(Outcome.FAILED_MIDSTREAM, "engine died")), "engine died"),
        ((*HEAD_SENT, ended(Outcome.EXPIRED_RUNNING)), "expired_running"),
        ((*HEAD_SENT, answer_frames.head(HEAD)), "sent head in the middle"),
        ((*HEAD_SENT, pb.AnswerFrame(ended=pb.Ended(outcome="no word"))), "Outcome is not an id"),
    ],
)
async def test_whatever_is_no_answer_is_a_failure(
    peer: FakePeer, origin: Origin, messages: tuple[pb.AnswerFrame, ...], detail: str
) -> None:
    peer.forwarded = says(*messages)
    failure = await origin.failure()
    assert failure.result is LegResult.FAILED
    assert detail in failure.detail


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


async def test_a_peer_that_we_have_just_dropped_has_not_failed(origin: Origin) -> None:
    with pytest.raises(LegFailure, match="no connection to peer nobody") as caught:
        origin.open(forward_order(to="nobody"))
    assert (caught.value.result, caught.value.refusal) == (LegResult.REFUSED, RefusalReason.BUSY)


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

    async def test_so_is_one_that_is_too_large_for_us_to_send(self, peer: FakePeer, make_origin: MakeOrigin) -> None:
        failure = await make_origin(PeeringConfig(message_max_bytes=100)).failure()
        assert (failure.result, failure.refusal) == (LegResult.REFUSED, RefusalReason.BUSY)
        assert "larger than max" in failure.detail

    async def test_an_answer_too_large_for_us_is_the_peer_s_failure(
        self, peer: FakePeer, make_origin: MakeOrigin
    ) -> None:
        peer.forwarded = says(answer_frames.accepted(), answer_frames.head(HEAD), answer_frames.data(b"x" * 5000))
        failure = await make_origin(PeeringConfig(message_max_bytes=2000)).failure()
        assert failure.result is LegResult.FAILED
        assert "larger than max" in failure.detail

    async def test_no_descriptor_left_for_a_connection(self, peer: FakePeer, make_origin: MakeOrigin) -> None:
        peer.forwarded = says(answer_frames.accepted(), answer_frames.head(HEAD), ended(Outcome.COMPLETED))
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

    async def test_what_is_no_wire_message_is_raised_as_it_is(self, origin: Origin) -> None:
        with pytest.raises(AssertionError, match="the core gives every forward its hops"):
            origin.open(replace(forward_order(), hops=None))

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


async def test_a_peer_that_says_nothing_is_given_up(peer: FakePeer, make_origin: MakeOrigin) -> None:
    cancelled = asyncio.Event()

    async def answer(request: pb.ForwardRequest, context: FrameContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    peer.forwarded = answer
    failure = await make_origin(PeeringConfig(accept_timeout_ns=SECOND // 20)).failure()
    assert failure == LegFailure(LegResult.FAILED, "the peer neither accepted nor refused in time")
    await cancelled.wait()


@pytest.mark.parametrize("with_head", [True, False])
async def test_leaving_a_leg_early_cancels_the_forward(peer: FakePeer, origin: Origin, with_head: bool) -> None:
    cancelled = asyncio.Event()

    async def answer(request: pb.ForwardRequest, context: FrameContext) -> None:
        try:
            await context.write(answer_frames.accepted())
            if with_head:
                await context.write(answer_frames.head(HEAD))
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    peer.forwarded = answer
    leg = origin.open()
    await leg.until(lambda: leg.told == ["accepted", "head"][: 1 + with_head])
    leg.handle.stop()
    assert leg.failure == STOPPED
    await cancelled.wait()
