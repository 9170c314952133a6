"""Opens an exchange to a gateway and sends arbitrary bytes or frames on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from gateway.peers.exchange.batches import UNASKED_BYTES_MAX
from gateway.peers.exchange.grpc_internals import writer_of
from gateway.peers.exchange.origin_stream import METHOD
from protos.mesh.v1 import peer_pb2 as pb


class RawOrigin:
    """Origin's end of one stream, without any of its rules."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        begin: Any = channel.stream_stream(METHOD)
        self.call: Any = begin()
        self._write = writer_of(self.call)
        self.heard: list[pb.AnswerFrame] = []

    async def say(self, *frames: pb.OriginFrame) -> None:
        await self.write(pb.ExchangeRequest(frames=frames).SerializeToString())

    async def write(self, message: bytes) -> None:
        await self._write(message)

    async def begin(self, forward: int, request: pb.ForwardRequest, credit: int = 2**20) -> None:
        await self.begin_raw(forward, request.SerializeToString(), credit)

    async def begin_raw(self, forward: int, raw: bytes, credit: int = 2**20) -> None:
        """Begin a forward whose request is these bytes, in as many frames as they need, unless it is refused before."""
        first, rest = raw[:UNASKED_BYTES_MAX], raw[UNASKED_BYTES_MAX:]
        await self.say(pb.OriginFrame(forward=forward, request_bytes=len(raw), request=first, credit=credit))
        if rest and not await self._gets_credit(forward):
            await self.say(pb.OriginFrame(forward=forward, cancel=True))
            return
        for start in range(0, len(rest), UNASKED_BYTES_MAX):
            await self.say(pb.OriginFrame(forward=forward, request=rest[start : start + UNASKED_BYTES_MAX]))

    async def _gets_credit(self, forward: int) -> bool:
        """Wait for credit for the rest of a request. False: the forward is refused."""
        while True:
            for frame in self.heard:
                if frame.forward == forward and (frame.credit or frame.HasField("refused")):
                    return not frame.HasField("refused")
            assert await self.hear(), "the stream ended first"

    async def hear(self) -> bool:
        """Read one message. False at the end of the stream."""
        raw = await self.call.read()
        if not isinstance(raw, bytes):
            return False
        self.heard += pb.ExchangeResponse.FromString(raw).frames
        return True

    async def until_ended(self, forward: int) -> str:
        """Wait for the end of a forward: its outcome, or the reason for its refusal."""
        while True:
            for frame in self.heard:
                if frame.forward == forward and (frame.HasField("ended") or frame.HasField("refused")):
                    return frame.ended.outcome or f"{frame.refused.reason}: {frame.refused.detail}"
            assert await self.hear(), "the stream ended first"

    async def status(self) -> tuple[grpc.StatusCode, str]:
        """Status of the stream, after its end."""
        return await self.call.code(), await self.call.details()


@asynccontextmanager
async def raw_origin(address: object) -> AsyncIterator[RawOrigin]:
    async with grpc.aio.insecure_channel(str(address)) as channel:
        origin = RawOrigin(channel)
        yield origin
        origin.call.cancel()
