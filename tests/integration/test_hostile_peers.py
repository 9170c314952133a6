"""A peer with a good certificate that lies as caller, called one and neighbour.

The cases are data: `tests/hostile/peers.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from msgspec.structs import replace

from gateway.config.targets import PeerConfig
from gateway.core.vocabulary import GatewayId, PeerSpec
from gateway.peers.exchange import wasted_frames
from mesh.values import Address
from protos.mesh.v1 import peer_pb2 as pb
from tests.fakes.raw_peer import RawPeer, serve_raw_peer, written
from tests.hostile.peers import (
    ANSWER_CASES,
    BEAT_CASES,
    CALL_CASES,
    ELSEWHERE_CASES,
    FRAME_CASES,
    GOOD_ANSWER,
    AnswerCase,
    BeatCase,
    CallCase,
    Came,
    FrameCase,
    Status,
    beat,
    forward,
)
from tests.hostile.tenants_told import USE_CASES
from tests.support.core import EU
from tests.support.exchanging import raw_origin
from tests.support.gateways import counted, until, usable_peers
from tests.support.hostile import ENOUGH_S, Besieged, besieged, sent
from tests.support.wire import posted, wire

USE_BEATS = tuple(
    BeatCase(
        f"of tenants: {case.name}",
        {"tenant_uses": list(case.uses), "age_us": case.age_us},
        believed=case.believed and not case.age_us,
    )
    for case in USE_CASES
)
_HOUR_NS = 3_600_000_000_000
_GOOD = AnswerCase("good", GOOD_ANSWER, 200, counts=False)


@dataclass
class Surrounded:
    at: Besieged
    peer: RawPeer
    case: AnswerCase = _GOOD

    async def answer(self, _: pb.ForwardRequest, context: Any) -> None:
        case = self.case
        try:
            for message in case.messages:
                await context.write(message)
        finally:  # the caller may have left
            self.peer.answered.add()
        if case.holds:
            await asyncio.Event().wait()
        if case.aborts is not None:
            await context.abort(case.aborts, "no")

    @property
    def believes_the_peer(self) -> bool:
        return usable_peers(self.at.gateway) == 1


@asynccontextmanager
async def surrounded(folder: Path, *, has_engine: bool) -> AsyncIterator[Surrounded]:
    peer = RawPeer(honest, honest)  # type: ignore[arg-type]
    async with serve_raw_peer(peer):
        told = PeerConfig(PeerSpec(GatewayId("eu-1"), EU), Address("127.0.0.1", peer.port))
        async with besieged(folder, lambda config: replace(config, peers=(told,)), has_engine=has_engine) as at:
            made = Surrounded(at, peer)
            peer.forwarded = made.answer
            await until(lambda: made.believes_the_peer)
            yield made


def honest(number: int) -> pb.SubscribeResponse:
    return beat(number, {})


def lying(case: BeatCase, number: int) -> pb.SubscribeResponse | bytes:
    return case.changes if isinstance(case.changes, bytes) else beat(number, case.changes)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def with_engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Surrounded]:
    async with surrounded(tmp_path_factory.mktemp("hostile"), has_engine=True) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def without_engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Surrounded]:
    async with surrounded(tmp_path_factory.mktemp("hostile"), has_engine=False) as made:
        yield made


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", CALL_CASES, ids=lambda case: case.name)
async def test_a_caller_gets_no_more_than_an_honest_one(with_engine: Surrounded, case: CallCase) -> None:
    at = with_engine.at
    at.told.clear()
    at.engine.raw_heads.clear()
    failures = at.failures("replica")
    message = case.changes if isinstance(case.changes, bytes) else written(forward(case.changes))
    assert await came_of(at, message) is case.came
    assert len(at.engine.raw_heads) == (case.came is Came.SERVED)
    assert at.failures("replica") == failures, "a peer's doing counts against an engine"
    await at.goes_on()


async def came_of(at: Besieged, message: bytes) -> Came:
    async with asyncio.timeout(ENOUGH_S), raw_origin(at.gateway.peers_address) as origin:
        try:
            await origin.begin_raw(1, message)
            end = await origin.until_ended(1)
        except grpc.aio.AioRpcError as error:
            if error.code() is Status.PERMISSION_DENIED:
                return Came.DENIED
            raise
    words = [
        name for frame in origin.heard for name in ("accepted", "refused", "head", "ended") if frame.HasField(name)
    ]
    if words == ["refused"]:
        return Came.MALFORMED if end.startswith("busy: INVALID_ARGUMENT: ") else Came.REFUSED
    assert words == ["accepted", "head", "ended"]
    return Came.SERVED


def _streams_broken(at: Besieged) -> float:
    """Forwarding streams that broke, as counted by the origin."""
    families = at.gateway.metrics.registry.collect()
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == "nightside_exchanges_broken_total"
    )


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", ANSWER_CASES, ids=lambda case: case.name)
async def test_an_answer_is_held_against_the_peer_alone(without_engine: Surrounded, case: AnswerCase) -> None:
    at, peer = without_engine.at, without_engine.peer
    at.told.clear()
    failures, answered, broken = at.failures("peer"), peer.answered.count, _streams_broken(at)
    without_engine.case = case
    if case.status:
        received = await sent(at.gateway, posted("connection: close"))
    else:
        received = await left(at, peer, answered)
    without_engine.case = _GOOD
    if case.aborts is not None:
        await until(lambda: _streams_broken(at) > broken)  # ends all forwards on that stream
    assert not case.status or int(received[9:12]) == case.status, received[:2000]
    assert case.contains in received
    assert not case.lacks or case.lacks not in received
    await at.goes_on()
    assert at.failures("peer") - failures == case.counts


@pytest.mark.parametrize("case", ELSEWHERE_CASES, ids=lambda case: case.name)
async def test_a_peer_that_says_it_broke_a_rule_is_sent_nothing_more(tmp_path: Path, case: AnswerCase) -> None:
    async with surrounded(tmp_path, has_engine=False) as made:
        made.case = case
        received = await sent(made.at.gateway, posted("connection: close"))
        assert int(received[9:12]) == case.status, received[:2000]
        assert case.contains in received
        assert not case.lacks or case.lacks not in received
        await made.peer.beats.reaches(made.peer.beats.count + 3)
        assert not made.believes_the_peer
        assert counted(made.at.gateway, "residency_violations_total", peer="eu-1") == 1
        assert not made.at.held()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_a_stream(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Surrounded]:
    async with surrounded(tmp_path_factory.mktemp("frames"), has_engine=False) as made:
        yield made


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", FRAME_CASES, ids=lambda case: case.name)
async def test_frames_that_lie_cost_the_peer_its_stream_at_most(
    on_a_stream: Surrounded, case: FrameCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, peer = on_a_stream.at, on_a_stream.peer
    if case.times > 1:  # However slowly the messages come, they count together.
        monkeypatch.setattr(wasted_frames, "WINDOW_NS", _HOUR_NS)
    at.told.clear()
    broken, answered = _streams_broken(at), peer.answered.count

    async def say(_: pb.ForwardRequest, context: Any) -> None:
        first, *others = case.messages
        try:
            for message in (*[first] * case.times, *others):
                await context.say_raw(message)
        finally:
            peer.answered.add()
        await asyncio.Event().wait()

    peer.forwarded = say
    try:
        received = await (sent(at.gateway, posted("connection: close")) if case.status else left(at, peer, answered))
    finally:
        peer.forwarded = on_a_stream.answer
        monkeypatch.undo()
    assert not case.status or int(received[9:12]) == case.status, received[:2000]
    assert case.contains in received
    assert not case.lacks or case.lacks not in received
    if case.breaks:
        await until(lambda: _streams_broken(at) > broken)
    else:
        assert _streams_broken(at) == broken
    await at.goes_on()


async def left(at: Besieged, peer: RawPeer, answered: int) -> bytes:
    """Bytes received when the client left: after the peer's whole answer, for an attempt that is retried for a
    while.
    """
    async with asyncio.timeout(ENOUGH_S), wire(at.gateway) as client:
        client.post()
        await peer.answered.reaches(answered + 1)
        beats = peer.beats.count
        await peer.beats.reaches(beats + 2)
        client.writer.write_eof()
        return await client.until_closed()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", [*BEAT_CASES, *USE_BEATS], ids=lambda case: case.name)
async def test_a_heartbeat_is_believed_within_reason(with_engine: Surrounded, case: BeatCase) -> None:
    at, peer = with_engine.at, with_engine.peer
    at.told.clear()
    peer.beat = partial(lying, case)
    try:
        await peer.beats.reaches(peer.beats.count + 3)
        async with asyncio.timeout(ENOUGH_S):
            await until(lambda: with_engine.believes_the_peer is case.believed)
        await at.goes_on()
    finally:
        peer.beat = honest
    async with asyncio.timeout(ENOUGH_S):
        await until(lambda: with_engine.believes_the_peer)


def test_each_is_told_apart() -> None:
    for cases in (CALL_CASES, ANSWER_CASES, FRAME_CASES, BEAT_CASES):
        assert len({case.name for case in cases}) == len(cases)
    assert len(CALL_CASES) + len(ANSWER_CASES) + len(BEAT_CASES) >= 60
