from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from gateway.config.sections import PeeringConfig
from gateway.peers.link import PeerLink
from mesh.transport import Plaintext
from protos.mesh.v1 import peer_pb2 as pb
from tests.fakes.engine import Tally
from tests.fakes.peer import FakePeer, SubscribeContext, serve_fake_peer
from tests.support.background import in_background
from tests.support.core import EU, MS, peer_spec
from tests.support.links import peer_link

SPEC = peer_spec("eu-1", EU)
DEFAULTS = PeeringConfig()
ASK = pb.SubscribeRequest(gateway_id="us-1")


class Renewable(Plaintext):
    """Credentials that change when a test says so."""

    def __init__(self) -> None:
        self.version = 1
        self.opened: list[grpc.aio.Channel] = []
        self._renewals = Tally()

    def renew(self) -> None:
        self.version += 1
        self._renewals.add()

    async def newer_than(self, version: int) -> None:
        await self._renewals.reaches(version)

    def open_channel(self, *arguments: object) -> grpc.aio.Channel:
        self.opened.append(super().open_channel(*arguments))  # type: ignore[arg-type]
        return self.opened[-1]


class Peer:
    """Peer that sends one heartbeat for each `tick`, on any connection, and records its callers' addresses."""

    def __init__(self) -> None:
        self.ticks = asyncio.Queue[bool]()
        self.callers: list[str] = []

    async def subscribed(self, request: pb.SubscribeRequest, context: SubscribeContext) -> None:
        self.callers.append(context.peer())
        while await self.ticks.get():
            await context.write(pb.SubscribeResponse(sequence=1))


@pytest.fixture
async def fake() -> AsyncIterator[FakePeer]:
    async with serve_fake_peer() as made:
        yield made


@asynccontextmanager
async def following(link: PeerLink) -> AsyncIterator[None]:
    async with in_background(link.follow_credentials()):
        yield
    await link.close()


async def until_version(link: PeerLink, version: int) -> None:
    while link.version != version:  # noqa: ASYNC110 - a link has no event to wait for
        await asyncio.sleep(0)


def is_closed(channel: grpc.aio.Channel) -> bool:
    return channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN


async def until_closed(channel: grpc.aio.Channel) -> None:
    while not is_closed(channel):  # noqa: ASYNC110 - a channel that was closed wakes nobody
        await asyncio.sleep(0.005)


Listening = tuple[Peer, Renewable, PeerLink, grpc.aio.UnaryStreamCall[pb.SubscribeRequest, pb.SubscribeResponse]]


@asynccontextmanager
async def listening(fake: FakePeer, peering: PeeringConfig = DEFAULTS) -> AsyncIterator[Listening]:
    """A link with a stream that has brought its first heartbeat."""
    peer, transport = Peer(), Renewable()
    fake.subscribed = peer.subscribed
    link = peer_link(fake.config(SPEC), peering, transport)
    async with following(link):
        running = link.stub.Subscribe(ASK)
        peer.ticks.put_nowait(True)
        assert await running.read() == pb.SubscribeResponse(sequence=1)
        yield peer, transport, link, running


async def test_a_stream_ends_where_it_began_and_new_calls_go_over(fake: FakePeer) -> None:
    async with listening(fake) as (peer, transport, link, running):
        transport.renew()
        await until_version(link, 2)
        peer.ticks.put_nowait(True)
        assert await running.read() == pb.SubscribeResponse(sequence=1)
        new = link.stub.Subscribe(ASK)
        peer.ticks.put_nowait(False)
        assert await running.read() == grpc.aio.EOF
        await until_closed(transport.opened[0])
        peer.ticks.put_nowait(True)
        assert await new.read() == pb.SubscribeResponse(sequence=1)
        assert not is_closed(transport.opened[1])
        first, second = peer.callers
        assert first != second, "another connection"
        new.cancel()


async def test_a_stream_that_outlasts_the_grace_is_cut(fake: FakePeer) -> None:
    async with listening(fake, PeeringConfig(connection_grace_ns=20 * MS)) as (_, transport, _, running):
        transport.renew()
        with pytest.raises(asyncio.CancelledError):
            await running.read()
        await until_closed(transport.opened[0])


async def test_leaving_closes_old_channels_too(fake: FakePeer) -> None:
    async with listening(fake) as (_, transport, link, running):
        transport.renew()
        await until_version(link, 2)
    assert [is_closed(channel) for channel in transport.opened] == [True, True]
    assert running.done()
