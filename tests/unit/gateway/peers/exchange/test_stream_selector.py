from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from gateway.config.sections import PeeringConfig
from gateway.core.vocabulary import LegResult
from gateway.peers.exchange.stream_selector import StreamSelector
from gateway.request.legs import LegFailure
from protos.mesh.v1 import peer_pb2 as pb
from tests.fakes import answer_frames
from tests.fakes.exchanging import FrameContext
from tests.fakes.liar import answered_with
from tests.fakes.peer import FakePeer, serve_fake_peer
from tests.support.core import EU, SECOND, peer_spec
from tests.support.exchanges import Taken, opened
from tests.support.gateways import until
from tests.support.links import peer_link

REQUEST = pb.ForwardRequest(request_id="r-1", origin_gateway_id="us-1").SerializeToString()
DEFAULTS = PeeringConfig()


@asynccontextmanager
async def carrying(peering: PeeringConfig = DEFAULTS) -> AsyncIterator[tuple[StreamSelector, FakePeer]]:
    async with serve_fake_peer() as fake:
        link = peer_link(fake.config(peer_spec("eu-1", EU)), peering)
        try:
            yield link.carrier, fake
        finally:
            await link.close()


async def outcome(forward: Taken) -> str:
    """Outcome of a forward, or why it broke off."""
    await until(lambda: forward.failure is not None or "ended" in forward.kinds)
    if forward.failure is not None:
        return forward.failure.detail
    forward.leave()
    return str(forward.words[-1].said.outcome)


async def until_accepted(forward: Taken) -> None:
    await until(lambda: forward.kinds == ["accepted"])


async def serves(_: pb.ForwardRequest, context: FrameContext) -> None:
    for message in (answer_frames.accepted(), *answered_with(b"x")):
        await context.write(message)


async def breaks(_: pb.ForwardRequest, context: FrameContext) -> None:
    await context.abort(grpc.StatusCode.INTERNAL, "broken")


async def test_forwards_share_one_stream() -> None:
    async with carrying() as (carrier, fake):
        fake.forwarded = serves
        for _ in range(5):
            assert await outcome(opened(carrier, REQUEST)) == "completed"
        assert fake.streams == 1


async def test_one_break_is_forgiven_and_a_second_in_a_row_is_left_alone_for_a_while() -> None:
    async with carrying(PeeringConfig(reconnect_min_ns=SECOND, reconnect_max_ns=SECOND)) as (carrier, fake):
        fake.forwarded = breaks
        assert await outcome(opened(carrier, REQUEST)) == "INTERNAL: broken"
        assert await outcome(opened(carrier, REQUEST)) == "INTERNAL: broken"
        await asyncio.sleep(0)
        with pytest.raises(LegFailure, match="left alone for a while, since: INTERNAL: broken") as caught:
            opened(carrier, REQUEST)
        assert caught.value.result is LegResult.FAILED
        assert fake.streams == 2


async def test_who_has_served_in_between_has_not_broken_twice_in_a_row() -> None:
    async with carrying() as (carrier, fake):
        for _ in range(4):
            fake.forwarded = serves
            assert await outcome(opened(carrier, REQUEST)) == "completed"
            fake.forwarded = breaks
            assert await outcome(opened(carrier, REQUEST)) == "INTERNAL: broken"


async def test_a_connection_that_is_lost_is_tried_at_once() -> None:
    """The connection is restored by gRPC, and the carrier adds no delay of its own."""
    async with carrying() as (carrier, fake):

        async def lost(_: pb.ForwardRequest, context: FrameContext) -> None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

        fake.forwarded = lost
        for _ in range(5):
            assert await outcome(opened(carrier, REQUEST)) == "UNAVAILABLE: gone"
        assert fake.streams == 5


async def test_a_stream_that_retires_takes_no_new_forward_and_ends_behind_its_last() -> None:
    async with carrying() as (carrier, fake):
        go_on = asyncio.Event()

        async def waits(request: pb.ForwardRequest, context: FrameContext) -> None:
            await context.write(answer_frames.accepted())
            await go_on.wait()
            for message in answered_with(b"x"):
                await context.write(message)

        fake.forwarded = waits
        first = opened(carrier, REQUEST)
        await until_accepted(first)
        old = carrier._stream
        assert old is not None
        carrier.retire()
        second = opened(carrier, REQUEST)
        await until_accepted(second)
        assert fake.streams == 2
        assert old.broken is None
        go_on.set()
        assert [await outcome(first), await outcome(second)] == ["completed"] * 2
        await until(lambda: old.broken is not None)
        assert old.has_closed
