from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest

from gateway.config.sections import PeeringConfig
from gateway.core.kernel.effects import EndRequest, StartLeg
from gateway.core.vocabulary import (
    GatewayId,
    LegResult,
    Outcome,
    RefusalReason,
    ReplicaId,
    RequestId,
    Resumes,
)
from gateway.peers import codec
from gateway.peers.client import PeerLegOpener
from gateway.request.legs import Leg, LegFailure, LegHead, OutboundRequest, RanAt, RequestSummary
from mesh.clock import Clock
from protos.mesh.v1 import peer_pb2 as pb
from tests.fakes.peer import FakePeer, ForwardContext, serve_fake_peer
from tests.support.core import AP, EU, SECOND, peer_spec, profile
from tests.support.descriptors import no_descriptor_left
from tests.support.links import peer_link
from tests.support.orders import forward_order

OUTBOUND = OutboundRequest(
    profile("r-1"), "/v1/completions", (("content-type", "application/json"),), b'{"model": "llama", "prompt": "hello"}'
)
HEAD = LegHead(200, (("content-type", "text/event-stream"),), RanAt(ReplicaId("eu-a"), EU))
SPEC = peer_spec("eu-1", EU)


@pytest.fixture(params=[True, False], ids=["exchange", "call"])
async def peer(request: pytest.FixtureRequest) -> AsyncIterator[FakePeer]:
    """Peer with forwards over exchanges and over calls."""
    async with serve_fake_peer(exchanges=request.param) as fake:
        yield fake


class Origin:
    """Gateway that forwards."""

    def __init__(self, peer: FakePeer, peering: PeeringConfig) -> None:
        self.link = peer_link(peer.config(SPEC), peering)
        self.accepted = 0
        self.violations: list[tuple[str, str, RanAt]] = []
        self.opener = PeerLegOpener(
            {SPEC.gateway_id: self.link},
            GatewayId("us-1"),
            Clock(),
            on_violation=lambda *violation: self.violations.append(violation),
        )

    @asynccontextmanager
    async def open(self, to: StartLeg | None = None) -> AsyncIterator[Leg]:
        async with self.opener.open(to or forward_order(), OUTBOUND, on_accepted=self._on_accepted) as leg:
            yield leg

    def _on_accepted(self) -> None:
        self.accepted += 1

    async def read(self) -> list[bytes]:
        async with self.open() as leg:
            return [chunk async for chunk in leg.chunks()]

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


def says(*messages: pb.ForwardResponse) -> Callable[[pb.ForwardRequest, ForwardContext], Awaitable[None]]:
    async def answer(request: pb.ForwardRequest, context: ForwardContext) -> None:
        for message in messages:
            await context.write(message)

    return answer


def ended(outcome: Outcome, detail: str = "") -> pb.ForwardResponse:
    return codec.ended_to_pb(EndRequest(RequestId("r-1"), outcome, detail, 1), RequestSummary(ran_at=HEAD.ran_at))


ELSEWHERE = RanAt(ReplicaId("ap-a"), AP)
"""Place that the stamp of `forward_order` does not allow."""


async def test_an_answer_from_where_the_stamp_forbids_goes_no_further(peer: FakePeer, origin: Origin) -> None:
    head = codec.head_to_pb(replace(HEAD, ran_at=ELSEWHERE))
    peer.forwarded = says(codec.accepted_to_pb(), head, codec.data_to_pb(b"data: 1\n\n"), ended(Outcome.COMPLETED))
    failure = await origin.failure()
    assert failure.result is LegResult.FAILED
    assert AP.region in failure.detail
    assert origin.violations == [("eu-1", "r-1", ELSEWHERE)]


async def test_an_end_that_tells_of_such_a_place_ends_the_answer(peer: FakePeer, origin: Origin) -> None:
    last = codec.ended_to_pb(EndRequest(RequestId("r-1"), Outcome.COMPLETED, "", 1), RequestSummary(ran_at=ELSEWHERE))
    peer.forwarded = says(codec.accepted_to_pb(), codec.head_to_pb(HEAD), codec.data_to_pb(b"data: 1\n\n"), last)
    failure = await origin.failure()
    assert failure.result is LegResult.FAILED
    assert origin.violations == [("eu-1", "r-1", ELSEWHERE)]


async def test_an_accepted_forward_streams_its_body_unchanged(peer: FakePeer, origin: Origin) -> None:
    asked: list[pb.ForwardRequest] = []

    async def answer(request: pb.ForwardRequest, context: ForwardContext) -> None:
        asked.append(request)
        parts = (codec.head_to_pb(HEAD), codec.data_to_pb(b"data: 1\n\nda"), codec.data_to_pb(b"ta: \xff\n\n"))
        await says(codec.accepted_to_pb(), *parts, ended(Outcome.COMPLETED))(request, context)

    peer.forwarded = answer
    async with origin.open() as leg:
        assert leg.head == replace(HEAD, attempt=1)
        assert [chunk async for chunk in leg.chunks()] == [b"data: 1\n\nda", b"ta: \xff\n\n"]
    assert origin.accepted == 1
    (request,) = asked
    assert (request.body, request.path, request.origin_gateway_id) == (OUTBOUND.body, OUTBOUND.path, "us-1")
    assert 29_000 < request.deadline_ms <= 30_000


async def test_acceptance_is_told_before_the_head_is_there(peer: FakePeer, origin: Origin) -> None:
    go_on = asyncio.Event()

    async def answer(request: pb.ForwardRequest, context: ForwardContext) -> None:
        await context.write(codec.accepted_to_pb())
        await go_on.wait()
        await says(codec.head_to_pb(HEAD), ended(Outcome.COMPLETED))(request, context)

    peer.forwarded = answer
    accepted = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:

        async def run() -> None:
            async with origin.opener.open(forward_order(), OUTBOUND, on_accepted=accepted.set) as leg:
                assert [chunk async for chunk in leg.chunks()] == []

        tasks.create_task(run())
        await accepted.wait()
        go_on.set()


async def test_a_client_error_is_an_answer(peer: FakePeer, origin: Origin) -> None:
    head = replace(HEAD, status=400)
    peer.forwarded = says(
        codec.accepted_to_pb(), codec.head_to_pb(head), codec.data_to_pb(b"{}"), ended(Outcome.CLIENT_ERROR)
    )
    async with origin.open() as leg:
        assert leg.head.status == 400
        assert [chunk async for chunk in leg.chunks()] == [b"{}"]


async def test_a_refusal_is_typed_and_nothing_was_accepted(peer: FakePeer, origin: Origin) -> None:
    peer.forwarded = says(codec.refused_to_pb(RefusalReason.QUEUE_FULL, "10 wait"))
    assert await origin.failure() == LegFailure(LegResult.REFUSED, "10 wait", RefusalReason.QUEUE_FULL)
    assert origin.accepted == 0


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
    peer.forwarded = says(codec.accepted_to_pb(), ended(outcome, "why"))
    assert await origin.failure() == LegFailure(LegResult.REFUSED, "why", refusal, resumes_used=Resumes(0))


HEAD_SENT = (codec.accepted_to_pb(), codec.head_to_pb(HEAD), codec.data_to_pb(b"data: 1\n\n"))


@pytest.mark.parametrize(
    "messages,detail",
    [
        ((), "closed the forward without a last word"),
        ((codec.head_to_pb(HEAD),), "first word was head"),
        ((pb.ForwardResponse(),), "first word was None"),
        ((codec.accepted_to_pb(),), "closed the forward without a last word"),
        ((codec.accepted_to_pb(), codec.data_to_pb(b"x")), "sent data before a head"),
        ((codec.accepted_to_pb(), pb.ForwardResponse(head=pb.Head(status=7))), "7 is not a final HTTP status"),
        ((codec.accepted_to_pb(), pb.ForwardResponse(head=pb.Head(status=204))), "204 has no body to be sent with"),
        ((codec.accepted_to_pb(), pb.ForwardResponse(head=pb.Head(status=304))), "304 has no body to be sent with"),
        ((codec.accepted_to_pb(), ended(Outcome.FAILED_BEFORE_FIRST_BYTE, "engine died")), "engine died"),
        ((codec.accepted_to_pb(), ended(Outcome.COMPLETED)), "ended as completed"),
        ((pb.ForwardResponse(refused=pb.Refused(reason="")),), "RefusalReason is not an id"),
        (HEAD_SENT, "closed the forward without a last word"),
        ((*HEAD_SENT, ended(Outcome.FAILED_MIDSTREAM, "engine died")), "engine died"),
        ((*HEAD_SENT, ended(Outcome.EXPIRED_RUNNING)), "expired_running"),
        ((*HEAD_SENT, codec.head_to_pb(HEAD)), "sent head in the middle"),
        ((*HEAD_SENT, pb.ForwardResponse(ended=pb.Ended(outcome="no word"))), "Outcome is not an id"),
    ],
)
async def test_whatever_is_no_answer_is_a_failure(
    peer: FakePeer, origin: Origin, messages: tuple[pb.ForwardResponse, ...], detail: str
) -> None:
    peer.forwarded = says(*messages)
    failure = await origin.failure()
    assert failure.result is LegResult.FAILED
    assert detail in failure.detail


async def test_a_grpc_error_is_a_failure(peer: FakePeer, origin: Origin) -> None:
    async def answer(request: pb.ForwardRequest, context: ForwardContext) -> None:
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
        async with origin.open(forward_order(to="nobody")):
            pass
    assert (caught.value.result, caught.value.refusal) == (LegResult.REFUSED, RefusalReason.BUSY)


class TestErrorsOfOurs:
    """Internal errors, which do not count against the peer."""

    async def test_a_forward_that_the_peer_finds_malformed_is_tried_elsewhere(
        self, peer: FakePeer, origin: Origin
    ) -> None:
        async def answer(request: pb.ForwardRequest, context: ForwardContext) -> None:
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
        peer.forwarded = says(codec.accepted_to_pb(), codec.head_to_pb(HEAD), codec.data_to_pb(b"x" * 5000))
        failure = await make_origin(PeeringConfig(message_max_bytes=2000)).failure()
        assert failure.result is LegResult.FAILED
        assert "larger than max" in failure.detail

    async def test_no_descriptor_left_for_a_connection(self, peer: FakePeer, make_origin: MakeOrigin) -> None:
        peer.forwarded = says(codec.accepted_to_pb(), codec.head_to_pb(HEAD), ended(Outcome.COMPLETED))
        origin = make_origin(PeeringConfig(reconnect_min_ns=SECOND // 100, reconnect_max_ns=SECOND // 50))
        with no_descriptor_left():
            failure = await origin.failure()
        assert failure.result is LegResult.INTERNAL
        assert "Too many open files" in failure.detail
        while True:  # repeats until it has connected again
            try:
                assert await origin.read() == []
                break
            except LegFailure:
                continue

    async def test_a_peer_that_says_so_has_failed_itself(self, peer: FakePeer, origin: Origin) -> None:
        async def answer(request: pb.ForwardRequest, context: ForwardContext) -> None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Too many open files")

        peer.forwarded = answer
        assert await origin.failure() == LegFailure(LegResult.FAILED, "UNAVAILABLE: Too many open files")

    async def test_what_is_no_wire_message_is_raised_as_it_is(self, origin: Origin) -> None:
        with pytest.raises(AssertionError, match="the core gives every forward its hops"):
            async with origin.open(replace(forward_order(), hops=None)):
                pass

    async def test_a_channel_that_we_closed_under_a_call_cancels_nobody_s_task(
        self, peer: FakePeer, origin: Origin
    ) -> None:
        """The result is a cancellation that was not requested, which the owner recognises as internal, or an internal
        failure.
        """
        arrived = asyncio.Event()

        async def answer(request: pb.ForwardRequest, context: ForwardContext) -> None:
            arrived.set()
            await asyncio.Event().wait()

        peer.forwarded = answer
        reading = asyncio.get_running_loop().create_task(origin.read())
        await arrived.wait()
        await origin.link.close()
        with pytest.raises(LegFailure if peer.exchanges else asyncio.CancelledError) as caught:
            await reading
        if isinstance(caught.value, LegFailure):
            assert caught.value.result is LegResult.INTERNAL
        assert not reading.cancelling()


async def test_a_peer_that_says_nothing_is_given_up(peer: FakePeer, make_origin: MakeOrigin) -> None:
    cancelled = asyncio.Event()

    async def answer(request: pb.ForwardRequest, context: ForwardContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    peer.forwarded = answer
    failure = await make_origin(PeeringConfig(accept_timeout_ns=SECOND // 20)).failure()
    assert failure == LegFailure(LegResult.FAILED, "the peer neither accepted nor refused in time")
    await cancelled.wait()


@pytest.mark.parametrize("with_head", [True, False])
async def test_leaving_a_leg_early_cancels_the_call(peer: FakePeer, origin: Origin, with_head: bool) -> None:
    cancelled = asyncio.Event()

    async def answer(request: pb.ForwardRequest, context: ForwardContext) -> None:
        try:
            await context.write(codec.accepted_to_pb())
            if with_head:
                await context.write(codec.head_to_pb(HEAD))
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    peer.forwarded = answer
    accepted = asyncio.Event()

    async def run() -> None:
        async with origin.opener.open(forward_order(), OUTBOUND, on_accepted=accepted.set) as leg:
            async for _ in leg.chunks():
                pass

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(run())
        await accepted.wait()
        task.cancel()
    assert task.cancelled()
    await cancelled.wait()
