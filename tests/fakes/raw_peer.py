"""A peer that writes any bytes where a message is expected: a real gRPC server without the generated serializers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from protos.mesh.v1 import peer_pb2 as pb
from tests.fakes.engine import Tally
from tests.fakes.exchanging import serve_exchange

SERVICE = "nightside.mesh.v1.PeerService"
Message = Any
"""A protobuf message, or bytes that stand for one."""
Beat = Callable[[int], Message]
Forwarded = Callable[[pb.ForwardRequest, Any], Awaitable[None]]
_BEAT_S = 0.02


def written(message: Message) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


class RawPeer:
    """Peer whose heartbeats (`beat`) and answers (`forwarded`) a test sets."""

    def __init__(self, beat: Beat, forwarded: Forwarded) -> None:
        self.beat = beat
        self.forwarded = forwarded
        self.beats = Tally()
        self.answered = Tally()
        """Forwards whose answer has been written completely."""
        self.port = 0

    async def _subscribe(self, _: bytes, context: Any) -> None:
        while True:
            self.beats.add()
            await context.write(self.beat(self.beats.count))
            await asyncio.sleep(_BEAT_S)

    async def _exchange(self, _: object, context: Any) -> None:
        await serve_exchange(context, lambda: self.forwarded)

    async def _ping(self, _: bytes, context: Any) -> bytes:
        return b""


@asynccontextmanager
async def serve_raw_peer(
    peer: RawPeer, credentials: grpc.ServerCredentials | None = None, port: int = 0
) -> AsyncIterator[RawPeer]:
    """Serve the peer on a port; 0 picks a free one."""
    handlers: dict[str, Any] = {
        "Subscribe": grpc.unary_stream_rpc_method_handler(peer._subscribe, response_serializer=written),
        "Exchange": grpc.stream_stream_rpc_method_handler(peer._exchange),
        "Ping": grpc.unary_unary_rpc_method_handler(peer._ping),
    }
    options = [("grpc.so_reuseport", 0), ("grpc.max_send_message_length", -1)]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    if credentials is None:
        peer.port = server.add_insecure_port(f"127.0.0.1:{port}")
    else:
        peer.port = server.add_secure_port(f"127.0.0.1:{port}", credentials)
    await server.start()
    try:
        yield peer
    finally:
        await server.stop(0)
