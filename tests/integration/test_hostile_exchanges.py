"""A caller with a good certificate that breaks the rules of an exchange.

It is refused with a reason, for a while, without any effect on an engine or on other callers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from msgspec.structs import replace

from gateway.config.targets import PeerConfig
from gateway.core.vocabulary import GatewayId, PeerSpec
from gateway.peers.exchange import wasted_frames
from gateway.peers.exchange.callers import STREAMS_EACH_MAX
from gateway.peers.exchange.grpc_internals import CallOver
from gateway.peers.exchange.wasted_frames import WASTED_MAX
from mesh.values import Address
from protos.mesh.v1 import peer_pb2 as pb
from tests.fakes.engine import ROLE, Exchange, stream, stream_and_hang, token
from tests.hostile.peers import forward
from tests.support.core import EU, SECOND
from tests.support.exchanging import RawOrigin, raw_origin
from tests.support.gateways import counted, until
from tests.support.hostile import ENOUGH_S, Besieged, besieged

Status = grpc.StatusCode
FORWARDS_MAX = 8
"""Forwards of one peer at once: half of those of all peers."""
NOBODY = Address("127.0.0.1", 9)


@pytest.fixture(autouse=True)
def one_long_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wasted_frames, "WINDOW_NS", HOUR_NS)


@asynccontextmanager
async def called(folder: Path) -> AsyncIterator[Besieged]:
    told = PeerConfig(PeerSpec(GatewayId("eu-1"), EU), NOBODY)

    async with besieged(
        folder,
        lambda config: replace(config, peers=(told,), peering=replace(config.peering, forwards_max=2 * FORWARDS_MAX)),
    ) as at:
        yield at


def asked(number: int = 1) -> pb.ForwardRequest:
    return forward({"request_id": f"r-{number}"})


def frame(**fields: Any) -> bytes:
    return pb.ExchangeRequest(frames=[pb.OriginFrame(**fields)]).SerializeToString()


_REQUEST = asked().SerializeToString()
_BEGIN = frame(forward=5, request_bytes=len(_REQUEST), request=_REQUEST, credit=1000)
_FLOOD = WASTED_MAX + FORWARDS_MAX + 1
WASTED_FEW = 100
"""Bound that replaces the product's: a thousand messages, one by one, take a busy machine long."""
HOUR_NS = 3600 * SECOND
"""Window that replaces the product's second, so that the machine's speed decides nothing."""
_FLOOD_OF_FEW = WASTED_FEW + FORWARDS_MAX + 1


@dataclass(frozen=True, slots=True)
class Breach:
    name: str
    messages: tuple[bytes, ...]
    status: grpc.StatusCode
    reason: str
    times: int = 1


BREACHES = (
    Breach("garbage", (b"\xff" * 50,), Status.INVALID_ARGUMENT, "no message"),
    Breach("half a frame", (_BEGIN[:-7],), Status.INVALID_ARGUMENT, "no message"),
    Breach("a message of 2 MiB", (frame(forward=1, request=bytes(2 << 20)),), Status.INVALID_ARGUMENT, "at most"),
    Breach("an id used again", (_BEGIN, _BEGIN), Status.INVALID_ARGUMENT, "forward 5 is begun after 5"),
    Breach(
        "an id that goes back",
        (_BEGIN, frame(forward=4, request_bytes=9)),
        Status.INVALID_ARGUMENT,
        "forward 4 is begun after 5",
    ),
    Breach(
        "more of a request than it announced",
        (frame(forward=1, request_bytes=10, request=b"12345"), frame(forward=1, request=b"678901")),
        Status.INVALID_ARGUMENT,
        "more of a request than was announced",
    ),
    Breach(
        "more of a request than credit",
        (frame(forward=1, request_bytes=1 << 20, request=bytes(300 * 1024)),),
        Status.INVALID_ARGUMENT,
        "than there was credit for",
    ),
    Breach(
        "credit beyond all use", (_BEGIN, frame(forward=5, credit=2**41)), Status.INVALID_ARGUMENT, "more credit than"
    ),
    Breach(
        "frames for forwards that never were",
        (frame(forward=9, credit=5000),),
        Status.RESOURCE_EXHAUSTED,
        "move nothing",
        _FLOOD_OF_FEW,
    ),
    Breach("empty messages", (b"",), Status.RESOURCE_EXHAUSTED, "move nothing", _FLOOD_OF_FEW),
    Breach(
        "a request byte by byte",
        (frame(forward=1, request_bytes=100_000, request=b"x"), *[frame(forward=1, request=b"x")] * _FLOOD_OF_FEW),
        Status.RESOURCE_EXHAUSTED,
        "move nothing",
    ),
)


@pytest.mark.parametrize("breach", BREACHES, ids=lambda each: each.name)
async def test_whoever_breaks_a_rule_loses_its_stream_with_a_reason_and_begins_no_other_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breach: Breach
) -> None:
    monkeypatch.setattr(wasted_frames, "WASTED_MAX", WASTED_FEW)
    async with called(tmp_path) as at:
        at.engine.plays(stream_and_hang(ROLE, token("x")))
        async with asyncio.timeout(ENOUGH_S), raw_origin(at.gateway.peers_address) as origin:
            await send_all(origin, breach.messages * breach.times)
            code, reason = await ended(origin)
        assert (code, breach.reason in reason) == (breach.status, True), reason
        at.engine.plays(*GOOD)
        at.told.clear()
        await at.goes_on()
        assert at.failures("replica") == 0
        async with asyncio.timeout(ENOUGH_S), raw_origin(at.gateway.peers_address) as again:
            code, reason = await ended(again)
        assert (code, "broke the rules" in reason) == (Status.RESOURCE_EXHAUSTED, True)
        broken = [
            counted(at.gateway, "exchanges_broken_total", peer=peer, seen_by="called") for peer in ("eu-1", "other")
        ]
        assert sum(broken) == 1


async def send_all(origin: RawOrigin, messages: tuple[bytes, ...]) -> None:
    """Send the messages until the peer ends the stream."""
    try:
        for message in messages:
            await origin.write(message)
    except CallOver:
        return


async def ended(origin: RawOrigin) -> tuple[grpc.StatusCode, str]:
    try:
        while await origin.hear():
            pass
    except grpc.aio.AioRpcError:
        pass
    return await origin.status()


async def test_a_flood_of_opens_runs_no_more_than_there_is_room_for(tmp_path: Path) -> None:
    """8 of 1,109 forwards reach the core; the flood of refused ones ends the caller's stream."""
    async with called(tmp_path) as at:
        at.engine.plays(stream(ROLE))
        async with asyncio.timeout(ENOUGH_S), raw_origin(at.gateway.peers_address) as origin:
            raw = [asked(number).SerializeToString() for number in range(1, _FLOOD + 101)]
            frames = [
                pb.OriginFrame(forward=number, request_bytes=len(each), request=each, credit=10**6)
                for number, each in enumerate(raw, 1)
            ]
            message = pb.ExchangeRequest(frames=frames).SerializeToString()
            await send_all(origin, (message,))
            code, reason = await ended(origin)
        assert (code, "move nothing" in reason) == (Status.RESOURCE_EXHAUSTED, True)
        assert len(at.engine.received) <= FORWARDS_MAX
        at.engine.plays(*GOOD)
        await at.goes_on()


async def test_beginning_and_leaving_at_once_again_and_again_is_a_flood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wasted_frames, "WASTED_MAX", WASTED_FEW)
    async with called(tmp_path) as at:
        async with asyncio.timeout(2 * ENOUGH_S), raw_origin(at.gateway.peers_address) as origin:
            for number in range(1, 4 * WASTED_FEW):
                raw = asked(number).SerializeToString()
                begin = pb.OriginFrame(forward=number, request_bytes=len(raw), request=raw, credit=10**6)
                message = pb.ExchangeRequest(frames=[begin, pb.OriginFrame(forward=number, cancel=True)])
                await send_all(origin, (message.SerializeToString(),))
            code, reason = await ended(origin)
        assert (code, "move nothing" in reason) == (Status.RESOURCE_EXHAUSTED, True)
        await at.goes_on()


ENDLESS = token("x" * 1000)


@pytest.mark.parametrize("credit", [0, 1000, 2**40], ids=["no credit", "little credit", "credit, and never reads"])
async def test_a_caller_that_takes_nothing_holds_its_engine_and_nothing_else(tmp_path: Path, credit: int) -> None:
    """An engine may send ahead 64 KiB here, the contents of the sockets' buffers, and what the caller's own library
    reads ahead.
    """
    brought = 0

    async def endless(exchange: Exchange) -> None:
        nonlocal brought
        await stream(ROLE)(exchange)
        while True:
            await exchange.send(ENDLESS)
            brought += len(ENDLESS)

    async with called(tmp_path) as at:
        at.engine.plays(endless, *GOOD)
        async with asyncio.timeout(2 * ENOUGH_S), raw_origin(at.gateway.peers_address) as origin:
            await origin.begin(1, asked(), credit=credit)
            await at.engine.arrived.reaches(1)
            seen = -1
            while brought != seen:
                seen = brought
                await asyncio.sleep(0.2)
            assert brought < 24 * 2**20
            await origin.say(pb.OriginFrame(forward=1, cancel=True))
            await at.engine.aborted.reaches(1)
        await at.goes_on()


@pytest.mark.parametrize("first", [bytes(2000), b""], ids=["a piece of it", "nothing of it"])
async def test_a_request_that_never_comes_whole_gives_its_room_back(tmp_path: Path, first: bytes) -> None:
    told = PeerConfig(PeerSpec(GatewayId("eu-1"), EU), NOBODY)
    async with besieged(
        tmp_path,
        lambda config: replace(
            config, peers=(told,), peering=replace(config.peering, accept_timeout_ns=50_000_000, forwards_max=1)
        ),
    ) as at:
        async with asyncio.timeout(ENOUGH_S), raw_origin(at.gateway.peers_address) as origin:
            await origin.say(pb.OriginFrame(forward=1, request_bytes=1 << 20, request=first, credit=1))
            assert await origin.until_ended(1) == "busy: the request did not come in time"
            await origin.begin(2, asked(2))
            assert await origin.until_ended(2) == "completed"
            assert {each.forward: each.credit for each in origin.heard if each.credit} == {1: (1 << 20) - 256 * 1024}
        await at.goes_on()


async def test_one_that_cannot_be_read_is_refused_and_all_others_go_on(tmp_path: Path) -> None:
    """A client's odd request must not cost others their forwards."""
    async with called(tmp_path) as at:
        async with asyncio.timeout(ENOUGH_S), raw_origin(at.gateway.peers_address) as origin:
            await origin.say(pb.OriginFrame(forward=1, request_bytes=3, request=b"\xff\xff\xff", credit=10**6))
            await origin.begin(2, forward({"request_id": "r-2", "deadline_ms": 0}))
            await origin.begin(3, forward({"request_id": "r-3", "body": b"[]"}))
            await origin.begin(4, asked(4))
            for number in (1, 2, 3):
                assert (await origin.until_ended(number)).startswith("busy: INVALID_ARGUMENT: ")
            assert await origin.until_ended(4) == "completed"
            assert b"".join(each.data for each in origin.heard if each.forward == 4).endswith(b"data: [DONE]\n\n")
        malformed = [counted(at.gateway, "forwards_malformed_total", peer=peer) for peer in ("eu-1", "other")]
        assert sum(malformed) == 3
        await at.goes_on()


async def test_a_caller_that_leaves_in_the_middle_ends_all_it_had(tmp_path: Path) -> None:
    async with called(tmp_path) as at:
        at.engine.plays(stream_for_ever)
        async with asyncio.timeout(ENOUGH_S), raw_origin(at.gateway.peers_address) as origin:
            for number in range(1, FORWARDS_MAX + 1):
                await origin.begin(number, asked(number))
                await at.engine.arrived.reaches(number)
        await until(lambda: at.engine.playing == 0)
        at.engine.plays(*GOOD)
        await at.goes_on()


async def stream_for_ever(exchange: Exchange) -> None:
    await stream(ROLE)(exchange)
    await asyncio.Event().wait()


async def test_streams_of_one_caller_have_an_end(tmp_path: Path) -> None:
    async with called(tmp_path) as at, asyncio.timeout(ENOUGH_S), asyncio.TaskGroup():
        async with grpc.aio.insecure_channel(str(at.gateway.peers_address)) as channel:
            held = [RawOrigin(channel) for _ in range(STREAMS_EACH_MAX)]
            for each in held:
                await each.say(pb.OriginFrame(forward=1, request_bytes=3, request=b"\xff\xff\xff"))
                await each.until_ended(1)
            code, reason = await ended(RawOrigin(channel))
            assert (code, reason) == (Status.RESOURCE_EXHAUSTED, "too many streams")
            for each in held:
                each.call.cancel()
        await at.goes_on()


GOOD = (
    stream(
        ROLE + token("Hello"),
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
        b"data: [DONE]\n\n",
    ),
)
