"""HTTP to engines on bare transports, against a raw server whose every byte a test writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvloop

from gateway.engines.connection import Connection, ConnectionPool, EngineGone, Origin, Response, origin_of
from tests.support.listening import Talk, listening

OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nhi"


class RawEngine:
    """Server that runs one talk per connection and counts the connections."""

    def __init__(self, talk: Talk) -> None:
        self.connections = 0
        self.requests: list[bytes] = []
        self.gone = asyncio.Event()
        self._talk = talk

    @asynccontextmanager
    async def served(self) -> AsyncIterator[Origin]:
        async with listening(self._serve) as port:
            yield Origin("127.0.0.1", port, None)

    async def read_request(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length" in head else 0
        request = head + await reader.readexactly(length)
        self.requests.append(request)
        return request

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._talk(reader, writer)
        finally:
            self.gone.set()


def answering(*answers: bytes) -> RawEngine:
    """Server that answers one request after the other on the same connection, then waits for the client to leave."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await engine.read_request(reader)
            writer.write(answer)
        await reader.read()

    engine = RawEngine(talk)
    return engine


@asynccontextmanager
async def pool(idle_s: float = 5.0) -> AsyncIterator[ConnectionPool]:
    made = ConnectionPool(connect_s=2.0, idle_s=idle_s)
    try:
        yield made
    finally:
        made.close()
        await asyncio.sleep(0)  # closing takes the event loop a turn


async def post(connections: ConnectionPool, origin: Origin, body: bytes = b"{}") -> Response:
    return await connections.request("POST", origin, "/v1/x", [("content-type", "application/json")], body)


async def whole(response: Response) -> bytes:
    parts = []
    while data := await response.read():
        parts.append(data)
    response.close()
    return b"".join(parts)


async def test_a_request_and_its_answer() -> None:
    engine = answering(OK)
    async with engine.served() as origin, pool() as connections:
        response = await post(connections, origin, b'{"a":1}')
        assert (response.status, await whole(response)) == (200, b"hi")
        assert ("content-type", "text/plain") in response.headers
        (request,) = engine.requests
        assert request.startswith(b"POST /v1/x HTTP/1.1\r\nhost: 127.0.0.1:")
        assert request.endswith(b'content-length: 7\r\n\r\n{"a":1}')


async def test_a_connection_is_used_again_once_its_answer_was_read() -> None:
    engine = answering(OK, OK)
    async with engine.served() as origin, pool() as connections:
        for _ in range(2):
            assert await whole(await post(connections, origin)) == b"hi"
        assert engine.connections == 1


async def test_an_answer_that_nobody_read_is_never_taken_for_the_next() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        writer.write(OK if engine.connections == 1 else OK.replace(b"hi", b"ho"))
        await reader.read()

    engine = RawEngine(talk)
    async with engine.served() as origin, pool() as connections:
        left = await post(connections, origin)
        await asyncio.sleep(0.01)  # the answer has arrived whole, and unread
        left.close()
        assert await whole(await post(connections, origin)) == b"ho"
        assert engine.connections == 2


async def test_closing_before_the_end_closes_the_connection() -> None:
    engine = answering(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n")
    async with engine.served() as origin, pool() as connections:
        response = await post(connections, origin)
        assert await response.read() == b"hi"
        response.close()
        await engine.gone.wait()


async def test_a_cancelled_wait_closes_the_connection() -> None:
    engine = answering(b"")
    async with engine.served() as origin, pool() as connections:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await post(connections, origin)
        await engine.gone.wait()


@pytest.mark.parametrize("size", [1, 3, 17])
async def test_chunks_come_whole_however_they_are_cut(size: int) -> None:
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n6\r\nsecond\r\n0\r\n\r\n"

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        for start in range(0, len(answer), size):
            writer.write(answer[start : start + size])
            await writer.drain()
            await asyncio.sleep(0)
        await reader.read()

    engine = RawEngine(talk)
    async with engine.served() as origin, pool() as connections:
        assert await whole(await post(connections, origin)) == b"firstsecond"


class Glass:
    """Sink that takes bytes until it is full."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.held = b""
        self.room = room
        self.took = asyncio.Event()
        self.failure: Exception | None = None

    def take(self, data: bytes) -> bool:
        self.took.set()
        if self.failure is not None:
            raise self.failure
        self.held += data
        return len(self.held) < self.room


class TestPouring:
    """Streams are handed on straight from the socket."""

    @pytest.fixture
    def engine(self) -> RawEngine:
        """Server that sends the pieces that the test hands it: an empty piece ends the answer, None stops it
        without an end.
        """

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await engine.read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            while (piece := await self.pieces.get()) is not None:
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                if not piece:
                    break
            await reader.read()

        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        engine = RawEngine(talk)
        return engine

    async def test_the_whole_body_comes_in_order_and_its_end_is_told(self, engine: RawEngine) -> None:
        async with engine.served() as origin, pool() as connections:
            response = await post(connections, origin)
            glass = Glass()
            for piece in (b"one ", b"two ", b"three", b""):
                self.pieces.put_nowait(piece)
            assert await response.pour(glass.take)
            assert glass.held == b"one two three"
            response.close()

    async def test_whoever_is_full_gets_no_more_until_it_asks_again(self, engine: RawEngine) -> None:
        async with engine.served() as origin, pool() as connections:
            response = await post(connections, origin)
            glass = Glass(room=4)
            self.pieces.put_nowait(b"one ")
            assert not await response.pour(glass.take)
            for piece in (b"two ", b""):
                self.pieces.put_nowait(piece)
            await asyncio.sleep(0.01)
            assert glass.held == b"one "
            glass.room = 1 << 30
            assert await response.pour(glass.take)
            assert glass.held == b"one two "
            response.close()

    async def test_what_breaks_off_is_an_error_after_what_came(self, engine: RawEngine) -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await broken.read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\none \r\n")

        broken = RawEngine(talk)
        async with broken.served() as origin, pool() as connections:
            response = await post(connections, origin)
            glass = Glass()
            with pytest.raises(EngineGone):
                await response.pour(glass.take)
            assert glass.held == b"one "
            response.close()

    async def test_what_the_taker_raises_comes_out_and_closes_the_connection(self, engine: RawEngine) -> None:
        async with engine.served() as origin, pool() as connections:
            response = await post(connections, origin)
            glass = Glass()
            glass.failure = ConnectionResetError("the client left")
            self.pieces.put_nowait(b"one ")
            with pytest.raises(ConnectionResetError, match="the client left"):
                await response.pour(glass.take)
            response.close()
            self.pieces.put_nowait(None)
            await engine.gone.wait()

    async def test_a_cancelled_pour_takes_nothing_any_more(self, engine: RawEngine) -> None:
        async with engine.served() as origin, pool() as connections:
            response = await post(connections, origin)
            glass = Glass()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await response.pour(glass.take)
            self.pieces.put_nowait(b"one ")
            await asyncio.sleep(0.01)
            assert glass.held == b""
            response.close()
            self.pieces.put_nowait(None)


async def test_a_body_without_a_length_ends_with_its_connection() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")

    engine = RawEngine(talk)
    async with engine.served() as origin, pool() as connections:
        assert await whole(await post(connections, origin)) == b"all of it"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n",
    ],
)
async def test_an_answer_that_breaks_off_is_an_error(answer: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        writer.write(answer)

    engine = RawEngine(talk)
    async with engine.served() as origin, pool() as connections:
        with pytest.raises(EngineGone):
            await whole(await post(connections, origin))


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 300 + b"\r\n"])
async def test_what_is_not_http_or_endless_is_an_error(answer: bytes) -> None:
    engine = answering(answer)
    async with engine.served() as origin, pool() as connections:
        with pytest.raises(EngineGone):
            await post(connections, origin)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    ],
)
async def test_an_answer_packed_against_our_wish_is_an_error(answer: bytes) -> None:
    engine = answering(answer)
    async with engine.served() as origin, pool() as connections:
        with pytest.raises(EngineGone, match="gzip"):
            await post(connections, origin)


@pytest.mark.parametrize("status", [b"200 OK\r\ncontent-length: 2", b"204 No Content", b"304 Not Modified"])
async def test_an_answer_behind_the_answer_is_never_read(status: bytes) -> None:
    first = b"HTTP/1.1 " + status + b"\r\n\r\n" + (b"hi" if b"200" in status else b"")
    engine = answering(first + b"HTTP/1.1 418 No\r\nx-smuggled: 1\r\ncontent-length: 2\r\n\r\nno")
    async with engine.served() as origin, pool() as connections:
        response = await post(connections, origin)
        assert f"{response.status}".encode() in status
        assert "x-smuggled" not in dict(response.headers)
        assert await whole(response) in (b"", b"hi")
        await engine.gone.wait()


async def test_an_error_of_ours_inside_the_parser_is_no_fault_of_the_engine_s(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(Connection, "on_headers_complete", fail)
    engine = answering(OK)
    async with engine.served() as origin, pool() as connections:
        with pytest.raises(KeyError, match="ours"):
            await post(connections, origin)


async def test_an_interim_answer_is_passed_over() -> None:
    engine = answering(b"HTTP/1.1 100 Continue\r\n\r\n" + OK)
    async with engine.served() as origin, pool() as connections:
        response = await post(connections, origin)
        assert (response.status, await whole(response)) == (200, b"hi")


async def test_a_connection_that_closed_while_idle_costs_nothing() -> None:
    """The engine closes the connection just as it is used: the request goes out again on a fresh one."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        writer.write(OK)
        if engine.connections == 1:
            await engine.read_request(reader)  # closes without an answer
            return
        await reader.read()

    engine = RawEngine(talk)
    async with engine.served() as origin, pool() as connections:
        assert await whole(await post(connections, origin)) == b"hi"
        assert await whole(await post(connections, origin)) == b"hi"
        assert engine.connections == 2


async def test_a_connection_that_half_answered_is_not_tried_again() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        writer.write(OK)
        await engine.read_request(reader)
        writer.write(b"HTTP/1.1 2")

    engine = RawEngine(talk)
    async with engine.served() as origin, pool() as connections:
        assert await whole(await post(connections, origin)) == b"hi"
        with pytest.raises(EngineGone):
            await post(connections, origin)


async def test_idle_connections_are_closed_after_their_time() -> None:
    engine = answering(OK)
    async with engine.served() as origin, pool(idle_s=0.02) as connections:
        assert await whole(await post(connections, origin)) == b"hi"
        await engine.gone.wait()


async def test_an_unread_answer_stops_the_engine_and_reading_lets_it_go_on() -> None:
    total = 32 * 2**20
    blocked = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total)
        for _ in range(total // 2**20):
            writer.write(b"x" * 2**20)
            if writer.transport.get_write_buffer_size() > 2**16:
                blocked.set()
            await writer.drain()
        await reader.read()

    engine = RawEngine(talk)
    async with engine.served() as origin, pool() as connections:
        response = await post(connections, origin)
        await blocked.wait()
        assert len(await whole(response)) == total


async def test_nobody_there() -> None:
    async with answering().served() as origin:
        pass
    async with pool() as connections:
        with pytest.raises(OSError):
            await post(connections, origin)


@pytest.mark.parametrize("value", ["a\r\nx-evil: 1", "a\nb", "a\rb"])
async def test_a_header_cannot_break_out_of_its_line(value: str) -> None:
    async with pool() as connections:
        with pytest.raises(ValueError, match="break out"):
            await connections.request("GET", Origin("127.0.0.1", 1, None), "/", [("x", value)], b"")


def test_the_origin_of_a_url() -> None:
    origin, path = origin_of("http://engine:8000/")
    assert (origin.host, origin.port, origin.tls, path) == ("engine", 8000, None, "")
    assert origin_of("http://engine:8000/")[0] is origin
    assert origin_of("http://[::1]/prefix")[0].port == 80
    assert origin_of("http://[::1]/prefix")[1] == "/prefix"
    assert origin_of("https://engine")[0].port == 443
    with pytest.raises(ValueError, match="no http"):
        origin_of("ftp://engine")


def test_gateways_run_on_uvloop_whose_transports_are_not_quite_those_of_asyncio() -> None:
    async def two_requests() -> int:
        engine = answering(OK, OK)
        async with engine.served() as origin, pool() as connections:
            for _ in range(2):
                assert await whole(await post(connections, origin)) == b"hi"
        return engine.connections

    assert uvloop.run(two_requests()) == 1


async def test_what_came_unasked_for_is_never_taken_for_the_next() -> None:
    """Holds also where the event loop has not yet reported the bytes."""
    writers: list[asyncio.StreamWriter] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await engine.read_request(reader)
        writer.write(OK)
        await reader.read()

    engine = RawEngine(talk)
    async with engine.served() as origin, pool() as connections:
        assert await whole(await post(connections, origin)) == b"hi"
        writers[0].write(OK.replace(b"hi", b"no"))
        assert await whole(await post(connections, origin)) == b"hi"
        assert engine.connections == 2


@pytest.mark.parametrize("first", [b"HTTP/1.1 204 No Content", b"HTTP/1.1 304 Not Modified"])
async def test_a_connection_is_left_behind_an_answer_that_may_have_no_body(first: bytes) -> None:
    engine = answering(first + b"\r\ncontent-length: 2\r\n\r\n", OK)
    async with engine.served() as origin, pool() as connections:
        for _ in range(2):
            assert await whole(await post(connections, origin)) == b""
        assert engine.connections == 2
