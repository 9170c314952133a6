"""Forwards a request as one gRPC call (`Forward`), as gateways older than `Exchange` expect. Remove it together with
`Forward` once the version after next is out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc.aio

from gateway.core.vocabulary import LegResult
from gateway.peers.link import PeerLink
from gateway.peers.words import Word, closed_without_a_word, faults_as_leg_failures, is_our_shortage
from gateway.request.legs import LegFailure
from protos.mesh.v1 import peer_pb2 as pb

_CLOSE_WAIT_S = 1.0

_Call = grpc.aio.UnaryStreamCall[pb.ForwardRequest, pb.ForwardResponse]


class CallWords:
    """Words of a forward that has a gRPC call of its own (see `Words`)."""

    def __init__(self, link: PeerLink, message: pb.ForwardRequest, timeout_s: float) -> None:
        self._link = link
        self._call: _Call = link.stub.Forward(message, timeout=timeout_s)
        self._has_spoken = False

    async def next(self) -> Word:
        try:
            message = await self._read()
        except LegFailure as failure:
            if not self._has_spoken and is_our_shortage(failure.__cause__) and not self._link.is_connected:
                raise LegFailure(LegResult.INTERNAL, failure.detail) from failure
            raise
        self._has_spoken = True
        kind = message.WhichOneof("kind")
        return Word(kind, None if kind is None else getattr(message, kind))

    async def pour(self, take: Callable[[bytes], bool]) -> Word | None:
        while (word := await self.next()).kind == "data":
            if not take(word.said):
                return None
        return word

    async def until_closed(self) -> None:
        """Wait up to a second for the peer to close the ended call; a cancellation could overtake that."""
        try:
            async with asyncio.timeout(_CLOSE_WAIT_S):
                await self._call.read()
        except (TimeoutError, grpc.aio.AioRpcError):
            pass

    def leave(self) -> None:
        self._call.cancel()

    async def _read(self) -> pb.ForwardResponse:
        """Read the next message of a known kind. A message of an unknown kind followed by the end of the call counts as
        the peer's last word."""
        passed_over = False
        while True:
            with faults_as_leg_failures():
                message = await self._call.read()
            if not isinstance(message, pb.ForwardResponse):
                raise closed_without_a_word(after_unknown=passed_over)
            if message.WhichOneof("kind") is not None or not message.ByteSize():
                return message
            passed_over = True
