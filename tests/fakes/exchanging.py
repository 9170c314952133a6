"""The peer's end of an exchange, for fakes whose scripts answer one forward at a time: each script gets a context of
its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from protos.mesh.v1 import peer_pb2 as pb

Script = Callable[[pb.ForwardRequest, Any], Awaitable[None]]
WINDOW = 2**30
"""Bytes of a request's flow-control window; large, since a fake does not count them."""


class FrameContext:
    """Context that sends each message of a script at once, in a frame of its forward."""

    def __init__(self, stream: ExchangeFake, forward: int) -> None:
        self._stream = stream
        self._forward = forward

    async def write(self, frame: pb.AnswerFrame | bytes) -> None:
        """Send a frame of this forward; bytes that are no frame are sent as they are, in place of the stream's next
        message.
        """
        raw = frame if isinstance(frame, bytes) else frame.SerializeToString()
        try:
            said = pb.AnswerFrame.FromString(raw)
        except DecodeError:
            await self._stream.write(raw)
            return
        said.forward = self._forward
        await self._stream.write(pb.ExchangeResponse(frames=[said]).SerializeToString())

    async def say_raw(self, message: pb.ExchangeResponse | bytes) -> None:
        """Send a whole message of the stream; forward numbers in it are relative to this forward's number."""
        if isinstance(message, pb.ExchangeResponse):
            said = pb.ExchangeResponse()
            said.CopyFrom(message)
            for frame in said.frames:
                frame.forward += self._forward
            message = said.SerializeToString()
        await self._stream.write(message)

    async def abort(self, code: grpc.StatusCode, details: str = "") -> None:
        """End the stream, and so every forward on it."""
        self._stream.abort(code, details)
        await asyncio.Event().wait()


class ExchangeFake:
    """One stream."""

    def __init__(self, context: Any, script: Callable[[], Script]) -> None:
        self.context = context
        self._script = script
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._requests: dict[int, tuple[int, bytearray]] = {}
        self._ended = asyncio.Event()
        self._writing = asyncio.Lock()
        """Lock around writes: gRPC takes one message at a time."""
        self._status: tuple[grpc.StatusCode, str] | None = None

    async def serve(self) -> None:
        await self.context.send_initial_metadata(())
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(self._read(tasks))
            try:
                await self._ended.wait()
            finally:
                for task in (reading, *self._tasks.values()):
                    task.cancel()
        if self._status is not None:
            await self.context.abort(*self._status)

    async def write(self, message: bytes) -> None:
        """Write a message whole, even for a caller that is cancelled meanwhile: gRPC goes on with it, and would refuse
        the next message until then.
        """
        await asyncio.shield(self._write(message))

    async def _write(self, message: bytes) -> None:
        async with self._writing:
            await self.context.write(message)

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        self._status = (code, details)
        self._ended.set()

    async def _read(self, tasks: asyncio.TaskGroup) -> None:
        while isinstance(raw := await self.context.read(), bytes):
            for frame in pb.ExchangeRequest.FromString(raw).frames:
                await self._take_in(frame, tasks)
        self._ended.set()

    async def _take_in(self, frame: pb.OriginFrame, tasks: asyncio.TaskGroup) -> None:
        number = frame.forward
        if frame.cancel:
            if number in self._tasks:
                self._tasks[number].cancel()
            return
        if frame.request_bytes:
            self._requests[number] = (frame.request_bytes, bytearray())
            await FrameContext(self, number).write(pb.AnswerFrame(credit=WINDOW))
        if number not in self._requests:
            return
        size, request = self._requests[number]
        request += frame.request
        if len(request) == size:
            del self._requests[number]
            message = pb.ForwardRequest.FromString(bytes(request))
            self._tasks[number] = tasks.create_task(self._run(number, message))

    async def _run(self, number: int, message: pb.ForwardRequest) -> None:
        context = FrameContext(self, number)
        try:
            await self._script()(message, context)
        except grpc.aio.BaseError:
            return  # the stream is over
        except asyncio.CancelledError:
            pass
        finally:
            del self._tasks[number]
        if self._ended.is_set():
            return
        try:
            await context.write(pb.AnswerFrame(last=True))
        except grpc.aio.BaseError:
            return


async def serve_exchange(context: Any, script: Callable[[], Script]) -> None:
    await ExchangeFake(context, script).serve()
