"""A small real gRPC server that answers a gateway's calls as a test chooses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from gateway.config.targets import PeerConfig
from gateway.core.vocabulary import PeerSpec
from mesh.values import parse_address
from protos.mesh.v1 import peer_pb2 as pb
from protos.mesh.v1 import peer_pb2_grpc
from tests.fakes.exchanging import FrameContext, serve_exchange

SERVICE = "nightside.mesh.v1.PeerService"

SubscribeContext = grpc.aio.ServicerContext[pb.SubscribeRequest, pb.SubscribeResponse]
PingContext = grpc.aio.ServicerContext[pb.PingRequest, pb.PingResponse]
ExplainContext = grpc.aio.ServicerContext[pb.ExplainRequest, pb.ExplainResponse]
Forwarded = Callable[[pb.ForwardRequest, FrameContext], Awaitable[None]]
Subscribed = Callable[[pb.SubscribeRequest, SubscribeContext], Awaitable[None]]
OwnershipContext = grpc.aio.ServicerContext[pb.OwnershipRequest, pb.OwnershipResponse]
Explained = Callable[[pb.ExplainRequest, ExplainContext], Awaitable[pb.ExplainResponse]]
Owned = Callable[[pb.OwnershipRequest, OwnershipContext], Awaitable[pb.OwnershipResponse]]


async def _nothing(request: object, context: object) -> None:
    """End the call at once, without a message."""


async def _unknown_call(_: object, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
    """Refuse the call as a version does that does not know it."""
    await context.abort(grpc.StatusCode.UNIMPLEMENTED)


class FakePeer:
    """Peer whose behaviour a test sets: `forwarded`, `subscribed`, `explained` and `owned`."""

    def __init__(self, *, options: Sequence[tuple[str, int]] = ()) -> None:
        self.streams = 0
        """Exchanges that were begun."""
        self.forwarded: Forwarded = _nothing
        self.subscribed: Subscribed = _nothing
        self.explained: Explained = _unknown_call
        self.owned: Owned = _unknown_call
        self.pings = 0
        self.answers_pings = asyncio.Event()
        self.answers_pings.set()
        self.port = 0
        self.server = grpc.aio.server(options=[("grpc.so_reuseport", 0), *options])

    async def Subscribe(self, request: pb.SubscribeRequest, context: SubscribeContext) -> None:  # noqa: N802
        await self.subscribed(request, context)

    async def Ping(self, request: pb.PingRequest, context: PingContext) -> pb.PingResponse:  # noqa: N802
        self.pings += 1
        await self.answers_pings.wait()
        return pb.PingResponse()

    async def Exchange(self, _: object, context: Any) -> None:  # noqa: N802
        self.streams += 1
        await serve_exchange(context, lambda: self.forwarded)

    async def Explain(self, request: pb.ExplainRequest, context: ExplainContext) -> pb.ExplainResponse:  # noqa: N802
        return await self.explained(request, context)

    async def Ownership(  # noqa: N802
        self, request: pb.OwnershipRequest, context: OwnershipContext
    ) -> pb.OwnershipResponse:
        return await self.owned(request, context)

    async def stop(self) -> None:
        await self.server.stop(0)

    def config(self, spec: PeerSpec) -> PeerConfig:
        return PeerConfig(spec, parse_address(f"127.0.0.1:{self.port}"))


@asynccontextmanager
async def serve_fake_peer(port: int = 0, *, options: Sequence[tuple[str, int]] = ()) -> AsyncIterator[FakePeer]:
    peer = FakePeer(options=options)
    peer_pb2_grpc.add_PeerServiceServicer_to_server(peer, peer.server)  # type: ignore[arg-type]
    exchange: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(peer.Exchange)
    peer.server.add_registered_method_handlers(SERVICE, {"Exchange": exchange})
    peer.port = peer.server.add_insecure_port(f"127.0.0.1:{port}")
    await peer.server.start()
    try:
        yield peer
    finally:
        await peer.stop()
