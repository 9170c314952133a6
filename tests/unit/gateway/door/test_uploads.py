"""Uploads over sockets: the bytes that are read, and in which steps."""

from __future__ import annotations

import asyncio
import gzip
import random
import threading
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from gateway.app.listening import server_limits
from gateway.core.vocabulary import GatewayId
from gateway.door import errors, uploads
from gateway.door.body_memory import BodyMemory, BodyReservation
from gateway.door.encodings import Inflater
from gateway.door.errors import ClientFault, ErrorKind
from gateway.door.settings import HttpSettings
from gateway.door.uploads import Uploads, announced_bytes, check_announced
from gateway.http1.server import Exchange, HttpFault, HttpServer
from tests.support.core import US
from tests.support.gateways import until
from tests.support.listening import listening_protocols

MIB = 1 << 20


class WatchedHeld(BodyReservation):
    """Counter that remembers each step of its growth."""

    def __init__(self, room: BodyMemory) -> None:
        super().__init__(room, ())
        self.steps: list[int] = []

    def grow(self, more_bytes: int) -> None:
        super().grow(more_bytes)
        self.steps.append(more_bytes)


@dataclass
class Read:
    """Result of one upload."""

    body: bytes | None = None
    fault: ErrorKind | None = None
    steps: list[int] = field(default_factory=list)
    turn: int = 0
    """Turn of the event loop in which the result came."""


class Desk:
    """A server that only reads bodies."""

    def __init__(self, settings: HttpSettings) -> None:
        self.settings = settings
        self.room = BodyMemory(settings.requests_max, settings.bodies_bytes_max, settings.body_bytes_max)
        self.uploads = Uploads(settings)
        self.reads: asyncio.Queue[Read] = asyncio.Queue()
        self.port = 0
        self.turn = 0
        self.begun: list[Exchange] = []
        self.left = 0
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.tasks = asyncio.TaskGroup()

    # Handler

    def serve(self, exchange: Exchange) -> None:
        self.begun.append(exchange)
        task = self.tasks.create_task(self.take(exchange))

        def leave() -> None:
            self.left += 1
            task.cancel()

        exchange.on_left = leave

    def refuse(self, fault: HttpFault) -> bytes:
        raise AssertionError(f"no test is refused for {fault}")

    async def take(self, exchange: Exchange) -> None:
        held, read = WatchedHeld(self.room), Read()
        try:
            await self.may_read.wait()
            check_announced(exchange, self.settings.body_bytes_max)
            read.body = await self.uploads.read(exchange, held)
        except ClientFault as fault:
            read.fault = fault.kind
        finally:
            held.close()
        read.steps, read.turn = held.steps, self.turn
        self.reads.put_nowait(read)
        exchange.must_close()
        exchange.respond(200, {}, b"")

    async def count_turns(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def reads_one(self, body: bytes, *headers: str) -> Read:
        async with self.client() as (_, writer):
            writer.write(posted(*headers, length=len(body)) + body)
            return await self.reads.get()


def posted(*headers: str, length: int | None) -> bytes:
    framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    return "\r\n".join(["POST / HTTP/1.1", "host: x", framing, *headers, "", ""]).encode()


def chunked(pieces: Iterator[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield b"%x\r\n%b\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


@asynccontextmanager
async def serving(**limits: float) -> AsyncIterator[Desk]:
    desk = Desk(HttpSettings(GatewayId("us-1"), US, **limits))  # type: ignore[arg-type] # numbers, all of them
    server = HttpServer(desk, server_limits(desk.settings))
    async with listening_protocols(server) as desk.port, desk.tasks:
        yield desk
        server.close(at_once=True)
        await server.until_empty()
    desk.uploads.close()
    assert (desk.room.bytes, desk.room.requests) == (0, 0)


async def test_it_is_counted_as_it_comes_and_not_as_it_is_announced() -> None:
    async with serving() as desk, desk.client() as (_, writer):
        writer.write(posted(length=16 * MIB))
        writer.write(bytes(1000))
        await until_bytes(desk.room, 1000)
        writer.write(bytes(5000))
        await until_bytes(desk.room, 6000)


async def until_bytes(room: BodyMemory, expected: int) -> None:
    await until(lambda: room.bytes >= expected)
    assert room.bytes == expected


@pytest.mark.parametrize("length", [None, 3 * MIB])
async def test_a_large_one_arrives_whole(length: int | None) -> None:
    body = random.Random(1).randbytes(3 * MIB)
    async with serving() as desk, desk.client() as (_, writer):
        writer.write(posted(length=length))
        pieces = [body[at : at + 100_000] for at in range(0, len(body), 100_000)]
        writer.writelines(pieces if length else list(chunked(iter(pieces))))
        read = await desk.reads.get()
    assert read.body == body
    assert sum(read.steps) == len(body)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_what_comes_out_is_counted_step_by_step(encoding: str) -> None:
    body = bytes(8 * MIB)
    packed = gzip.compress(body) if encoding == "gzip" else zlib.compress(body)
    async with serving() as desk:
        read = await desk.reads_one(packed, f"content-encoding: {encoding}")
    assert read.body == body
    assert max(read.steps) <= uploads.STEP_BYTES_MAX
    assert sum(read.steps) == len(body)


async def test_the_loop_inflates_no_more_than_a_little_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte in small pieces, each of which inflates to a thousand times its size."""
    by_loop: list[int] = []
    by_thread: list[int] = []

    class Watched(Inflater):
        def step(self, bytes_max: int) -> bytes:
            is_loop = threading.current_thread() is threading.main_thread()
            (by_loop if is_loop else by_thread).append(bytes_max)
            return super().step(bytes_max)

    monkeypatch.setattr(uploads, "Inflater", Watched)
    packed = gzip.compress(bytes(MIB))
    assert len(packed) < uploads.PROMPT_BYTES_MAX
    async with serving() as desk:
        assert (await desk.reads_one(packed, "content-encoding: gzip")).body == bytes(MIB)
        assert (by_loop, set(by_thread)) == ([uploads.PROMPT_STEP_BYTES_MAX], {uploads.STEP_BYTES_MAX})
        by_loop.clear()
        await desk.reads_one(gzip.compress(random.Random(1).randbytes(MIB)), "content-encoding: gzip")
        assert not by_loop


async def test_a_bomb_is_refused_before_it_is_more_than_a_body() -> None:
    async with serving(body_bytes_max=MIB) as desk:
        read = await desk.reads_one(gzip.compress(bytes(100 * MIB)), "content-encoding: gzip")
    assert read.fault is errors.BODY_TOO_LARGE
    assert sum(read.steps) <= MIB


async def test_and_before_it_is_more_than_there_is_room_for() -> None:
    async with serving(bodies_bytes_max=MIB) as desk:
        read = await desk.reads_one(gzip.compress(bytes(10 * MIB)), "content-encoding: gzip")
    assert read.fault is errors.GATEWAY_FULL
    assert sum(read.steps) <= MIB


async def test_what_never_comes_out_is_counted_too() -> None:
    """Empty blocks: any number of bytes that inflate to none."""
    async with serving(body_bytes_max=10_000) as desk, desk.client() as (_, writer):
        head = zlib.compress(b"")[:2]
        writer.write(posted("content-encoding: deflate", length=None))
        writer.writelines(list(chunked(iter([head, *[b"\x00\x00\x00\xff\xff" * 500] * 10]))))
        assert (await desk.reads.get()).fault is errors.BODY_TOO_LARGE


async def test_one_that_stops_is_given_up_when_the_grace_is_over() -> None:
    async with serving(body_grace_s=0.05, body_rate_min=1e9) as desk, desk.client() as (_, writer):
        writer.write(posted(length=100) + b"{")
        assert (await desk.reads.get()).fault is errors.BODY_INCOMPLETE


@pytest.mark.parametrize("length", [None, 1000])
async def test_one_that_drips_is_given_up_although_it_never_stops(length: int | None) -> None:
    async with serving(body_grace_s=0.05, body_rate_min=1e6) as desk, desk.client() as (_, writer):
        writer.write(posted(length=length))
        async with asyncio.TaskGroup() as tasks:
            dripping = tasks.create_task(drip(writer, is_chunked=length is None))
            assert (await desk.reads.get()).fault is errors.BODY_INCOMPLETE
            dripping.cancel()


async def drip(writer: asyncio.StreamWriter, *, is_chunked: bool) -> None:
    while True:
        writer.write(b"1\r\n \r\n" if is_chunked else b" ")
        await asyncio.sleep(0.01)


async def test_one_that_is_fast_enough_gets_more_time_than_the_grace() -> None:
    """The grace is over at once, and each byte adds an hour."""
    async with serving(body_grace_s=1e-9, body_rate_min=1 / 3600) as desk, desk.client() as (_, writer):
        writer.write(posted(length=10_000) + b"{")
        await until_bytes(desk.room, 1)
        writer.write(b" " * 9999)
        assert (await desk.reads.get()).body == b"{" + b" " * 9999


async def test_who_expects_to_be_told_to_go_on_is_told_when_there_is_room() -> None:
    async with serving() as desk, desk.client() as (reader, writer):
        writer.write(posted("expect: 100-Continue", length=2))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"{}")
        assert (await desk.reads.get()).body == b"{}"
        assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("headers", "length", "expected"),
    [
        (("expect: 100-continue",), 17 * MIB, errors.BODY_TOO_LARGE),
        (("expect: 100-continue", "content-encoding: br"), 10, errors.UNSUPPORTED_ENCODING),
        (("expect: 100-continue",), 2 * MIB, errors.GATEWAY_FULL),
        (("expect: a-miracle",), 10, errors.EXPECTATION_FAILED),
    ],
)
async def test_nobody_is_told_to_go_on_who_is_refused(
    headers: tuple[str, ...], length: int, expected: ErrorKind
) -> None:
    async with serving(bodies_bytes_max=MIB) as desk, desk.client() as (reader, writer):
        writer.write(posted(*headers, length=length))
        assert (await desk.reads.get()).fault is expected
        assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"


async def test_a_large_one_of_nothing_but_fields_is_refused_before_it_is_decoded() -> None:
    async with serving() as desk:
        assert (await desk.reads_one(b'{%b"model":"m"}' % (b'"":1,' * MIB))).fault is errors.INVALID_FIELD
        plain = b'{"model":"m","messages":[%b1]}' % (b'{"role":"user"},' * (MIB // 2))
        assert (await desk.reads_one(plain)).body == plain


@pytest.mark.parametrize("is_packed", [False, True])
async def test_of_large_ones_that_are_whole_at_once_one_is_handed_on_per_turn_of_the_loop(*, is_packed: bool) -> None:
    body = bytes(uploads.TURN_BYTES + 1)
    packed = gzip.compress(body)
    sent = (
        posted("content-encoding: gzip", length=len(packed)) + packed if is_packed else posted(length=len(body)) + body
    )
    async with serving() as desk, AsyncExitStack() as clients, asyncio.TaskGroup() as tasks:
        desk.may_read.clear()
        for _ in range(8):
            _, writer = await clients.enter_async_context(desk.client())
            writer.write(sent)
        await until_come(desk, 8)
        counting = tasks.create_task(desk.count_turns())
        desk.may_read.set()
        reads = [await desk.reads.get() for _ in range(8)]
        counting.cancel()
    assert [read.body for read in reads] == [body] * 8
    assert len({read.turn for read in reads}) == 8


async def until_come(desk: Desk, count: int) -> None:
    await until(lambda: sum(exchange.is_complete for exchange in desk.begun) == count)


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_a_malformed_one_is_refused_while_it_is_awaited(encoding: str) -> None:
    async with serving() as desk, desk.client() as (reader, writer):
        writer.write(posted(f"content-encoding: {encoding}", length=None) + b"2\r\n\x1f\x8b\r\n")
        await until(lambda: bool(desk.begun))
        writer.write(b"nonsense\r\n")
        assert (await desk.reads.get()).fault is errors.INVALID_REQUEST
        assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_one_whose_client_leaves_gives_back_its_room(encoding: str) -> None:
    async with serving() as desk:
        async with desk.client() as (_, writer):
            writer.write(posted(f"content-encoding: {encoding}", length=1000) + gzip.compress(b"hello")[:12])
            await until(lambda: bool(desk.begun))
        await until(lambda: desk.left == 1)
        await until(lambda: desk.room.bytes == 0)
        assert desk.reads.empty()


@pytest.mark.parametrize(
    ("headers", "length", "expected"),
    [((), 7, 7), ((), None, None), (("x: y",), 0, 0)],
)
async def test_a_length_is_known_unless_the_body_is_chunked(
    headers: tuple[str, ...], length: int | None, expected: int | None
) -> None:
    async with serving() as desk, desk.client() as (_, writer):
        writer.write(posted(*headers, length=length))
        await until(lambda: bool(desk.begun))
        assert announced_bytes(desk.begun[0]) == expected
