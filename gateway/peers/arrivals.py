"""Admits forwards that arrive as a gRPC call each (`Forward`): the caller is identified and memory is reserved for the
message before any of it is read.

gRPC reads the single message of a unary call before the handler runs, with no limit on how many at once. The server
therefore treats `Forward` as a stream of messages and reads the first one after admission; the bytes on the wire are
the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from gateway.config.sections import PeeringConfig
from gateway.core.vocabulary import RefusalReason
from gateway.peers import codec
from gateway.peers.room import PeerRoom, Place
from mesh.identity import caller_identity
from protos.mesh.v1 import peer_pb2 as pb

_SECOND_NS = 1_000_000_000
_METHOD = "Forward"

Context = grpc.aio.ServicerContext[pb.ForwardRequest, pb.ForwardResponse]
Check = Callable[[Context], Awaitable[None]]
"""Aborts the call of a caller that is not a gateway of this mesh."""
Run = Callable[[pb.ForwardRequest, Context], Awaitable[None]]


class Arrivals:
    """Handler of `Forward` calls: checks the caller, reserves memory, reads the message and runs it."""

    def __init__(self, peering: PeeringConfig, room: PeerRoom, check: Check, run: Run) -> None:
        """Reading a message times out after the peering's `accept_timeout`, when its origin gives it up as well."""
        self._wait_s = peering.accept_timeout_ns / _SECOND_NS
        self._check = check
        self._run = run
        self.room = room

    def add_to(self, server: grpc.aio.Server, service_name: str) -> None:
        """Replace the generated handler of `Forward`; call this after the generated handlers were added."""
        handler: grpc.RpcMethodHandler[bytes, pb.ForwardResponse] = grpc.stream_stream_rpc_method_handler(
            self.let_in, response_serializer=pb.ForwardResponse.SerializeToString
        )
        server.add_registered_method_handlers(service_name, {_METHOD: handler})

    async def let_in(self, _: object, context: Context) -> None:
        """Handler for gRPC that reads the request itself, once the caller is checked and memory is reserved."""
        await self._check(context)
        place = await self.room.place_for(caller_name(context))
        if place is None:
            await context.write(codec.refused_to_pb(RefusalReason.BUSY, "too much is held for other gateways"))
            return
        with place:
            # No reference to the message is kept here: it is as large as its body, and only the body is needed later.
            await self._run(await self._read(place, context), context)

    async def _read(self, place: Place, context: Context) -> pb.ForwardRequest:
        try:
            async with asyncio.timeout(self._wait_s):
                raw: Any = await context.read()
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the request did not come in time")
        if not isinstance(raw, bytes):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "there is no request")
        place.settle(len(raw))
        try:
            return pb.ForwardRequest.FromString(raw)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is no message")


def caller_name(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Key that a caller's memory is counted under: the URI of its certificate, else its IP address without the port."""
    try:
        return caller_identity(context.auth_context()).uri
    except ValueError:
        return context.peer().rpartition(":")[0]
