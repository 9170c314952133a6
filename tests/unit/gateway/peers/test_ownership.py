from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Coroutine

import grpc
import pytest

from gateway.config.sections import PeeringConfig
from gateway.core.vocabulary import ControlVersion, GatewayId, PeerSpec, ReplicaId
from gateway.peers import codec
from gateway.peers.ownership import REST_NS, OwnershipAsker
from mesh.clock import Clock
from mesh.config import LogFormat, LoggingConfig, LogLevel
from mesh.control.vocabulary import Ownership, ReplicaOwner
from mesh.logs import make_logger
from protos.mesh.v1 import peer_pb2 as pb
from tests.fakes.peer import FakePeer, OwnershipContext, serve_fake_peer
from tests.support.core import EU, MS
from tests.support.links import peer_link

OURS, PEER = GatewayId("us-1"), GatewayId("eu-1")
KNOWN, NEWER = ControlVersion(1, 5), ControlVersion(1, 6)
AWAY = (ReplicaOwner(ReplicaId("r1"), OURS, PEER),)


class Still(Clock):
    def __init__(self) -> None:
        super().__init__()
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns


class Asking:
    def __init__(self, fake: FakePeer) -> None:
        self.fake = fake
        self.clock = Still()
        self.stream = io.StringIO()
        self.learnt: list[tuple[GatewayId, Ownership]] = []
        self.running: list[Coroutine[None, None, None]] = []
        self.questions: list[str] = []
        self.answer = codec.ownership_to_pb(Ownership(NEWER, AWAY))
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        fake.owned = self._owned
        peering = PeeringConfig(ping_timeout_ns=200 * MS)
        self.link = peer_link(fake.config(PeerSpec(PEER, EU)), peering)
        self.asker = OwnershipAsker(
            {PEER: self.link},
            OURS,
            is_news=lambda version: version.is_newer_than(KNOWN),
            learnt=lambda *told: self.learnt.append(told),
            start=self.running.append,
            clock=self.clock,
            log=make_logger(LoggingConfig(LogFormat.JSON, LogLevel.DEBUG), OURS, self.stream),
        )

    async def _owned(self, question: pb.OwnershipRequest, _: OwnershipContext) -> pb.OwnershipResponse:
        self.questions.append(question.gateway_id)
        await self.may_answer.wait()
        return self.answer

    async def heard(self, version: ControlVersion = NEWER) -> None:
        self.asker.heard(PEER, version)
        async with asyncio.TaskGroup() as tasks:
            while self.running:
                tasks.create_task(self.running.pop())


@pytest.fixture
async def asking() -> AsyncIterator[Asking]:
    async with serve_fake_peer() as fake:
        asking = Asking(fake)
        yield asking
        await asking.link.close()


async def test_a_newer_word_is_asked_for_and_handed_on(asking: Asking) -> None:
    await asking.heard()
    assert asking.learnt == [(PEER, Ownership(NEWER, AWAY))]
    assert asking.questions == [OURS]


async def test_what_is_no_news_is_not_asked_for_nor_is_a_stranger(asking: Asking) -> None:
    await asking.heard(KNOWN)
    asking.asker.heard(GatewayId("nobody"), NEWER)
    assert asking.running == []


async def test_one_question_at_a_time_and_it_has_an_end(asking: Asking) -> None:
    asking.may_answer.clear()
    for _ in range(5):
        asking.asker.heard(PEER, NEWER)
    assert len(asking.running) == 1
    await asking.heard()
    assert asking.learnt == []


@pytest.mark.parametrize(
    ("answer", "is_failure"),
    [
        (codec.ownership_to_pb(Ownership(KNOWN, AWAY)), False),
        (pb.OwnershipResponse(term=9, version=9, away=[pb.ReplicaOwner(replica_id="not an id")]), True),
    ],
    ids=["nothing new", "malformed"],
)
async def test_a_peer_that_does_not_keep_its_word_is_left_alone_for_a_while(
    asking: Asking, answer: pb.OwnershipResponse, *, is_failure: bool
) -> None:
    asking.answer = answer
    await asking.heard()
    await asking.heard()
    assert (len(asking.questions), asking.learnt) == (1, [])
    assert ("peer_ownership_query_failed" in asking.stream.getvalue()) is is_failure
    asking.clock.ns += REST_NS
    asking.answer = codec.ownership_to_pb(Ownership(NEWER, AWAY))
    await asking.heard()
    assert len(asking.learnt) == 1


async def test_an_older_gateway_knows_no_such_question(asking: Asking) -> None:
    async def unheard_of(_: object, context: OwnershipContext) -> pb.OwnershipResponse:

        await context.abort(grpc.StatusCode.UNIMPLEMENTED)

    asking.fake.owned = unheard_of
    await asking.heard()
    assert asking.learnt == []
