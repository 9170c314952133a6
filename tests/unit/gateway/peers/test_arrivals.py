"""Forwards over gRPC: another gateway's messages are not read before there is room for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.config.sections import PeeringConfig
from gateway.core.vocabulary import GatewayId, RefusalReason
from gateway.peers import codec
from gateway.peers.arrivals import Arrivals, Context
from gateway.peers.room import PeerRoom
from gateway.peers.server import SERVICE_NAME
from gateway.request.legs import OutboundRequest
from mesh.clock import Clock
from protos.mesh.v1 import peer_pb2 as pb
from protos.mesh.v1 import peer_pb2_grpc
from tests.support.core import MS, profile
from tests.support.gateways import until
from tests.support.orders import forward_order

KIB = 1024
MESSAGE_MAX = 256 * KIB
SMALL = PeeringConfig(
    message_max_bytes=MESSAGE_MAX,
    forwards_held_max_bytes=4 * MESSAGE_MAX,
    forwards_held_peer_max_bytes=2 * MESSAGE_MAX,
)


class Gateway:
    """Server that reads forwards, and holds each of them until `go_on` is set."""

    def __init__(self, peering: PeeringConfig) -> None:
        self.arrivals = Arrivals(peering, PeerRoom.of(peering), self.check, self.run)
        self.is_stranger = False
        self.bodies: list[int] = []
        self.go_on = asyncio.Event()
        self.channel: grpc.aio.Channel

    async def check(self, context: Context) -> None:
        if self.is_stranger:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "a stranger")

    async def run(self, request: pb.ForwardRequest, context: Context) -> None:
        self.bodies.append(len(request.body))
        await context.write(codec.accepted_to_pb())
        await self.go_on.wait()

    def forward(self, body_bytes: int) -> Any:
        request = OutboundRequest(profile("r-1"), "/v1/completions", (), bytes(body_bytes))
        message = codec.forward_to_pb(forward_order(), request, GatewayId("us-1"), Clock().now_ns())
        return peer_pb2_grpc.PeerServiceStub(self.channel).Forward(message)

    def begin(self) -> Any:
        """A call that has not sent anything yet."""
        return self.channel.stream_stream(f"/{SERVICE_NAME}/Forward")()

    async def first_word(self, call: Any) -> str | RefusalReason:
        message = await call.read()
        kind: str = message.WhichOneof("kind")
        return codec.read_refused(message.refused)[0] if kind == "refused" else kind


@asynccontextmanager
async def serving(peering: PeeringConfig = SMALL) -> AsyncIterator[Gateway]:
    gateway = Gateway(peering)
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", MESSAGE_MAX)])
    gateway.arrivals.add_to(server, SERVICE_NAME)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as gateway.channel:
        yield gateway
    await server.stop(None)
    await until(lambda: (gateway.arrivals.room.bytes, gateway.arrivals.room.peers) == (0, 0))  # handlers end late


async def test_what_one_peer_has_here_is_bounded_and_refused_without_being_read() -> None:
    async with serving() as gateway:
        calls = [gateway.forward(200 * KIB) for _ in range(5)]
        words = [await gateway.first_word(call) for call in calls]
        assert sorted(map(str, words)) == ["accepted", "accepted", "busy", "busy", "busy"]
        assert gateway.bodies == [200 * KIB, 200 * KIB]
        gateway.go_on.set()


async def test_small_ones_come_in_however_many_arrive_at_once() -> None:
    async with serving() as gateway:
        calls = [gateway.forward(KIB) for _ in range(60)]
        words = [await gateway.first_word(call) for call in calls]
        assert set(words) == {"accepted"}
        assert gateway.arrivals.room.bytes < 2 * 60 * KIB
        gateway.go_on.set()


async def test_when_they_go_there_is_room_again() -> None:
    async with serving() as gateway:
        first = gateway.forward(200 * KIB)
        assert await gateway.first_word(first) == "accepted"
        first.cancel()
        await until(lambda: not gateway.arrivals.room.bytes)
        assert await gateway.first_word(gateway.forward(200 * KIB)) == "accepted"
        gateway.go_on.set()


async def test_one_that_never_comes_is_not_waited_for() -> None:
    async with serving(PeeringConfig(accept_timeout_ns=20 * MS)) as gateway:
        call = gateway.begin()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_stranger_is_refused_before_it_has_said_anything() -> None:
    async with serving() as gateway:
        gateway.is_stranger = True
        call = gateway.begin()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("said", [None, b"\xff\xff\xff"])
async def test_what_is_no_request_is_its_sender_s_fault(said: bytes | None) -> None:
    async with serving() as gateway:
        call = gateway.begin()
        if said is not None:
            await call.write(said)
        await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
