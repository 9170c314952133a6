"""Lets forwards in that come in a call of their own: who calls is known, and there is room for what they say, before
any of it is read.

gRPC reads a call's one message by itself before its handler runs, however many there are. So to the server a forward is
a stream of messages, of which the first is asked for when its turn has come; on the wire that is the same.
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
from gateway.ground.identity import caller_identity
from gateway.peers import codec
from gateway.peers.room import PeerRoom, Place
from protos.mesh.v1 import peer_pb2 as pb

_SECOND_NS = 1_000_000_000
_METHOD = "Forward"

Context = grpc.aio.ServicerContext[pb.ForwardRequest, pb.ForwardResponse]
Check = Callable[[Context], Awaitable[None]]
"""Ends the call of whoever may not call at all."""
Run = Callable[[pb.ForwardRequest, Context], Awaitable[None]]


class Arrivals:
    """The door for forwards."""

    def __init__(self, peering: PeeringConfig, room: PeerRoom, check: Check, run: Run) -> None:
        """A forward that has not come in by the time its origin gives it up is not waited for any longer."""
        self._wait_s = peering.accept_timeout_ns / _SECOND_NS
        self._check = check
        self._run = run
        self.room = room

    def add_to(self, server: grpc.aio.Server, service_name: str) -> None:
        """In place of the handler of the same name, to be called after that one was added."""
        handler: grpc.RpcMethodHandler[bytes, pb.ForwardResponse] = grpc.stream_stream_rpc_method_handler(
            self.let_in, response_serializer=pb.ForwardResponse.SerializeToString
        )
        server.add_registered_method_handlers(service_name, {_METHOD: handler})

    async def let_in(self, _: object, context: Context) -> None:
        """A handler for gRPC. It leaves reading to us."""
        await self._check(context)
        place = await self.room.place_for(caller_name(context))
        if place is None:
            await context.write(codec.refused_to_pb(RefusalReason.BUSY, "too much is held for other gateways"))
            return
        with place:
            # Nobody here keeps the message: it is as large as its body, which is all that goes on.
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
    """Whose bytes these are: by the certificate, else by the address, whose ports are many."""
    try:
        return caller_identity(context.auth_context()).uri
    except ValueError:
        return context.peer().rpartition(":")[0]
