"""A peer that reports any state that a test chooses, as often as it likes, and answers forwards in any way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gateway.core.vocabulary import (
    DEFAULT_POOL,
    GatewayId,
    LoadReport,
    ModelCapacity,
    ModelName,
    Outcome,
    Place,
    RefusalReason,
    ReplicaId,
)
from gateway.peers import codec
from gateway.request.legs import LegHead, RanAt
from protos.mesh.v1 import peer_pb2 as pb
from tests.fakes import answer_frames
from tests.fakes.engine import Tally
from tests.fakes.exchanging import FrameContext
from tests.fakes.peer import FakePeer, Forwarded, SubscribeContext, serve_fake_peer
from tests.support.core import EU, MODEL

Beat = Callable[[int], pb.SubscribeResponse]
"""Heartbeat of a number, counted from 1 over all subscriptions."""
_BEAT_S = 0.02


def idle_report(sequence: int, *, available: int = 1, model: ModelName = MODEL, place: Place = EU) -> LoadReport:
    capacity = ModelCapacity(model, DEFAULT_POOL, place, max(available, 1), available, room=available)
    return LoadReport(
        GatewayId("eu-1"),
        place,
        sequence,
        accepting=True,
        assignment_version=1,
        policy_digest="d",
        capacities=(capacity,),
    )


def idle_beat(number: int) -> pb.SubscribeResponse:
    """Heartbeat of a gateway that is idle, always with age 0."""
    return codec.load_to_pb(idle_report(number), age_ns=0)


async def refuse(_: pb.ForwardRequest, context: FrameContext) -> None:
    await context.write(answer_frames.refused(RefusalReason.BUSY, "no"))


async def never_answer(_: pb.ForwardRequest, context: FrameContext) -> None:
    await asyncio.Event().wait()


async def accept_and_hang(_: pb.ForwardRequest, context: FrameContext) -> None:
    await context.write(answer_frames.accepted())
    await asyncio.Event().wait()


AT_HOME = RanAt(ReplicaId("eu-a"), EU)


def serve_with(*pieces: bytes, ran_at: RanAt = AT_HOME) -> Forwarded:
    """Accept the forward and answer with these pieces, claiming that it ran at `ran_at`."""

    async def script(_: pb.ForwardRequest, context: FrameContext) -> None:
        await context.write(answer_frames.accepted())
        for message in answered_with(*pieces, ran_at=ran_at):
            await context.write(message)

    return script


def answered_with(*pieces: bytes, ran_at: RanAt = AT_HOME) -> list[pb.AnswerFrame]:
    head = LegHead(200, (("content-type", "text/event-stream"),), ran_at)
    ended = pb.AnswerFrame(ended=pb.Ended(outcome=Outcome.COMPLETED))
    return [answer_frames.head(head), *map(answer_frames.data, pieces), ended]


class Liar:
    """Peer whose `beat` and `forwards` a test sets; `open` counts the forwards that it has not finished."""

    def __init__(self, fake: FakePeer) -> None:
        self.fake = fake
        self.beat: Beat = idle_beat
        self.forwards: Forwarded = refuse
        self.beats = 0
        self.arrived = Tally()
        self.open = 0
        fake.subscribed = self._subscribed
        fake.forwarded = self._forwarded

    async def _subscribed(self, _: pb.SubscribeRequest, context: SubscribeContext) -> None:
        while True:
            self.beats += 1
            await context.write(self.beat(self.beats))
            await asyncio.sleep(_BEAT_S)

    async def _forwarded(self, request: pb.ForwardRequest, context: FrameContext) -> None:
        self.arrived.add()
        self.open += 1
        try:
            await self.forwards(request, context)
        finally:
            self.open -= 1


@asynccontextmanager
async def serve_liar(port: int = 0) -> AsyncIterator[Liar]:
    async with serve_fake_peer(port) as fake:
        yield Liar(fake)
