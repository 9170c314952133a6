"""A gateway as a controller sees it: one control stream, over which a test sends messages and receives the
controller's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import grpc
import grpc.aio

from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import ControlVersion, GatewayId, Place
from mesh.control.codec import read_from_controller, said_by_gateway
from mesh.control.pool_history import PoolHistory
from mesh.control.vocabulary import (
    Alive,
    Announcement,
    ControlSnapshot,
    FromGateway,
    Hello,
    HistoriesWanted,
    PeerHeard,
    Report,
    SnapshotTaken,
)
from protos.mesh.v1 import control_pb2 as pb
from protos.mesh.v1 import control_pb2_grpc
from tests.support.core import policy


def replica_document(replica_id: str, **more: object) -> str:
    return json.dumps({"id": replica_id, "url": f"http://127.0.0.1:1/{replica_id}", "models": ["llama"], **more})


def hello(
    name: str,
    place: Place,
    replicas: int = 2,
    *,
    own: ResidencyPolicy | None = None,
    health_url: str = "",
    address: str = "",
) -> Hello:
    documents = tuple(replica_document(f"{name}-r{number}") for number in range(replicas))
    said = Announcement(
        (address or f"192.0.2.{sum(name.encode()) % 250}",),
        f"10.0.0.1:{7000 + sum(name.encode())}",
        health_url,
        None,
        None,
        documents,
    )
    return Hello(GatewayId(name), place, ControlVersion(), said, own or policy(place))


@dataclass
class AttachedGateway:
    """Snapshots received, newest last."""

    call: grpc.aio.StreamStreamCall[pb.AttachRequest, pb.AttachResponse]
    snapshots: list[ControlSnapshot] = field(default_factory=list)
    histories: list[tuple[int, PoolHistory]] = field(default_factory=list)
    """Histories of pools, each with the number of snapshots that came before it."""
    wants_histories: Place | None = None
    """Place of a controller that has asked for histories."""
    alive: int = 0
    ended: str = ""
    """Reason for which the stream has ended; empty while it is open."""
    takes: bool = True
    """True if each snapshot is answered with Taken."""
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _one_writer: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def say(self, said: FromGateway) -> None:
        async with self._one_writer:  # gRPC takes one message at a time
            await self.call.write(said_by_gateway(said))

    async def heard(self, *peers: PeerHeard) -> None:
        await self.say(Report(peers))

    async def listen(self) -> None:
        try:
            while isinstance(message := await self.call.read(), pb.AttachResponse):
                said = read_from_controller(message)
                if isinstance(said, ControlSnapshot):
                    self.snapshots.append(said)
                    if self.takes:
                        await self.say(SnapshotTaken(said.version))
                elif isinstance(said, Alive):
                    self.alive += 1
                elif isinstance(said, PoolHistory):
                    self.histories.append((len(self.snapshots), said))
                elif isinstance(said, HistoriesWanted):
                    self.wants_histories = said.place
                self._tell()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        self.ended = f"{await self.call.code()}: {await self.call.details()}"
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    @property
    def newest(self) -> ControlSnapshot:
        return self.snapshots[-1]

    @property
    def replica_ids(self) -> list[str]:
        return sorted(json.loads(each.document)["id"] for each in self.newest.replicas)

    async def until(self, holds: Callable[[AttachedGateway], bool]) -> ControlSnapshot:
        while not (self.snapshots and holds(self)):
            assert not self.ended, self.ended
            await self._news.wait()
        return self.newest

    async def until_ended(self) -> str:
        while not self.ended:
            await self._news.wait()
        return self.ended


@asynccontextmanager
async def attached(channel: grpc.aio.Channel, said: Hello) -> AsyncIterator[AttachedGateway]:
    """Attach a gateway; its stream is broken off at the end, as by a process that is killed."""
    call = control_pb2_grpc.ControlServiceStub(channel).Attach()
    gateway = AttachedGateway(call)
    async with asyncio.TaskGroup() as tasks:
        listening = tasks.create_task(gateway.listen())
        try:
            with suppress(grpc.aio.AioRpcError):  # the stream may be over; `ended` then has the reason
                await gateway.say(said)
            yield gateway
        finally:
            call.cancel()
            listening.cancel()
