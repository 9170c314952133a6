"""A small real gRPC server that a gateway attaches to, and that sends the messages that a test chooses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import grpc
import grpc.aio

from mesh.channels import stop_at_once
from mesh.control import codec
from mesh.control.pool_history import PoolHistory
from mesh.control.vocabulary import (
    Alive,
    Announcement,
    ControlSnapshot,
    FromController,
    FromGateway,
    Hello,
    Report,
    SnapshotRejected,
    SnapshotTaken,
)
from mesh.tls import ControllerTls, MeshTls
from protos.mesh.v1 import control_pb2 as pb
from protos.mesh.v1 import control_pb2_grpc

Context = grpc.aio.ServicerContext[pb.AttachRequest, pb.AttachResponse]
_Kind = TypeVar("_Kind", Hello, Announcement, Report, SnapshotTaken, SnapshotRejected, PoolHistory)
_ALIVE_S = 0.02


@dataclass
class Attached:
    """One stream of one gateway."""

    context: Context
    said: list[FromGateway] = field(default_factory=list)
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    one_writer: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_over: bool = False
    """True once the stream has ended and the gateway sends nothing more on it."""

    async def say(self, said: FromController) -> None:
        """Send one message at a time: gRPC takes no two at once."""
        async with self.one_writer:
            await self.context.write(codec.said_by_controller(said))

    def all(self, kind: type[_Kind]) -> list[_Kind]:
        return [each for each in self.said if isinstance(each, kind)]

    async def first(self, kind: type[_Kind], *, after: int = 0) -> _Kind:
        """First message of this kind after `after` earlier ones, once it has arrived."""
        while len(self.all(kind)) <= after:
            await self._hear_more()
        return self.all(kind)[after]

    async def answer(self, snapshot: ControlSnapshot) -> SnapshotTaken | SnapshotRejected:
        """Send the snapshot and return the gateway's answer to it."""
        before = len(self._answers())
        await self.say(snapshot)
        while len(self._answers()) <= before:
            await self._hear_more()
        return self._answers()[before]

    def end(self) -> None:
        self.is_over = True
        self.heard.set()

    async def _hear_more(self) -> None:
        assert not self.is_over, f"its stream is over, after {self.said}"
        self.heard.clear()
        await self.heard.wait()

    def _answers(self) -> list[SnapshotTaken | SnapshotRejected]:
        return [each for each in self.said if isinstance(each, SnapshotTaken | SnapshotRejected)]


class FakeController:
    """Controller that keeps the messages of gateways, and sends each a keep-alive unless `is_silent`."""

    def __init__(self) -> None:
        self.attached: list[Attached] = []
        self.is_silent = False
        self.hangs_up = False
        self.first_words: list[FromController] = []
        """Messages with which each stream begins."""
        self.port = 0
        self.server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self._changed = asyncio.Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def Attach(self, _: object, context: Context) -> None:  # noqa: N802
        if self.hangs_up:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "who are you?")
        attached = Attached(context)
        for word in self.first_words:
            await attached.say(word)
        self.attached.append(attached)
        self._changed.set()
        try:
            await self._listen(attached, context)
        finally:
            attached.end()

    async def _listen(self, attached: Attached, context: Context) -> None:
        async with asyncio.TaskGroup() as tasks:
            living = tasks.create_task(self._live(attached))
            while isinstance(message := await context.read(), pb.AttachRequest):
                said = codec.read_from_gateway(message)
                assert said is not None, "a gateway of this version says what this version knows"
                attached.said.append(said)
                attached.heard.set()
            living.cancel()

    async def stream(self, number: int) -> Attached:
        """Stream of that number, from 0, once it has been opened."""
        while len(self.attached) <= number:
            self._changed.clear()
            await self._changed.wait()
        return self.attached[number]

    async def _live(self, attached: Attached) -> None:
        while True:
            if not self.is_silent:
                await attached.say(Alive())
            await asyncio.sleep(_ALIVE_S)


@asynccontextmanager
async def serve_fake_controller(
    tls: ControllerTls | MeshTls | None = None, *, port: int = 0
) -> AsyncIterator[FakeController]:
    controller = FakeController()
    control_pb2_grpc.add_ControlServiceServicer_to_server(controller, controller.server)  # type: ignore[arg-type]
    address = f"127.0.0.1:{port}"
    if tls is None:
        controller.port = controller.server.add_insecure_port(address)
    else:
        controller.port = tls.add_port(controller.server, address)
    await controller.server.start()
    try:
        yield controller
    finally:
        await stop_at_once(controller.server)
