"""HTTP to engines: bytes in and bytes out on transports without sockets, and a raw server where the network counts."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from gateway.http1 import client as client_module
from gateway.http1.client import (
    ClientConnection,
    ClientExchange,
    ConnectionPool,
    Headers,
    HttpOrigin,
    request_head,
)
from gateway.http1.errors import EngineGone
from mesh.clock import Clock
from mesh.tls import HttpTls
from tests.support.certificates import Files, clients_leaf, new_ca, roots_of
from tests.support.gateways import until
from tests.support.lines import Line
from tests.support.listening import Talk, listening

OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nhi"
HERE = HttpOrigin("engine", 8000, None)


class Reader:
    """Receiver of an answer that keeps what it is told, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.status = 0
        self.headers: Headers = ()
        self.peer = ""
        self.body = b""
        self.error: Exception | None = None
        self.on_told: Callable[[str], None] = lambda _: None

    @property
    def is_over(self) -> bool:
        return self.told[-1:] in (["end"], ["broken"])

    @property
    def has_ended(self) -> bool:
        return self.told[-1:] == ["end"]

    def on_head(self, exchange: ClientExchange, status: int, headers: Headers, peer: str) -> None:
        del exchange
        self.status, self.headers, self.peer = status, headers, peer
        self._tell("head")

    def on_data(self, data: bytes) -> None:
        assert data, "nothing is no news"
        self.body += data
        self._tell("data")

    def on_end(self) -> None:
        self._tell("end")

    def on_broken(self, error: Exception) -> None:
        self.error = error
        self._tell("broken")

    def _tell(self, word: str) -> None:
        assert not self.is_over, f"{word} after the end"
        self.told.append(word)
        self.on_told(word)


class LinePool(ConnectionPool):
    """Pool whose connections are lines, made in the next turn of the event loop."""

    def __init__(self) -> None:
        self.turns = 0
        super().__init__(connect_s=2.0, idle_s=5.0, on_turn=self.count_turn)
        self.lines: list[Line] = []
        self.failures: list[Exception] = []

    def count_turn(self) -> None:
        self.turns += 1

    async def connect(self, origin: HttpOrigin) -> ClientConnection:
        del origin
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        connection = ClientConnection(self.on_turn)
        line = Line(peername=("192.0.2.7", 8000))
        line.connect(connection)  # type: ignore[arg-type] # it has the methods, not the base class
        self.lines.append(line)
        return connection

    async def asks(self, reader: Reader, body: bytes = b"{}") -> tuple[ClientExchange, Line]:
        """Send a request, on an idle connection if there is one."""
        known = len(self.lines)
        idle = [line for line in self.lines if not line.is_closed]
        exchange = self.request("POST", HERE, "/v1/x", [("a", "b")], body, taker=reader)
        if not idle:
            await until(lambda: len(self.lines) > known)
        await asyncio.sleep(0)
        return exchange, self.lines[-1]


@pytest.fixture
async def pool() -> AsyncIterator[LinePool]:
    made = LinePool()
    yield made
    made.close()


ANSWERS: dict[str, tuple[bytes, int, bytes, bool]] = {
    "length": (OK, 200, b"hi", True),
    "no-body": (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 200, b"", True),
    "chunks": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"
        b"5\r\nfirst\r\n6;x=y\r\nsecond\r\n0\r\nx-trailer: 1\r\n\r\n",
        200,
        b"firstsecond",
        True,
    ),
    "interim": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n" + OK, 200, b"hi", True),
    "error": (b"HTTP/1.1 429 Slow\r\nretry-after: 3\r\ncontent-length: 4\r\n\r\nfull", 429, b"full", True),
    "closes": (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi", 200, b"hi", False),
    "1.0": (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi", 200, b"hi", False),
    "1.0-keeps-alive": (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nhi", 200, b"hi", True),
    "no-content": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", False),
    "not-modified": (b"HTTP/1.1 304 Not Modified\r\n\r\n", 304, b"", False),
    "no-content-with-length": (b"HTTP/1.1 204 No Content\r\ncontent-length: 2\r\n\r\n", 204, b"", False),
    "not-modified-with-length": (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 2\r\n\r\n", 304, b"", False),
}
"""Server's answer; status and body; and whether the connection is used again."""
NO_ANSWERS: dict[str, tuple[bytes, str]] = {
    "no-http": (b"SSH-2.0-OpenSSH_9.2\r\n", "not HTTP"),
    "control-character": (b"HTTP/1.1 200 OK\r\na: \x00\r\n\r\n", "not HTTP"),
    "two-lengths": (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nhi", "not HTTP"),
    "many-headers": (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 300 + b"\r\n", "too large"),
    "coded": (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nhi", "gzip"),
    "coded-chunks": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", "gzip"),
    "other-protocol": (b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\nxyz", "not HTTP"),
}


def cut(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    ends = [0, *sorted(each % (len(data) + 1) for each in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(ends)]


async def read(pool: LinePool, pieces: Iterable[bytes]) -> tuple[Reader, Line]:
    reader = Reader()
    _, line = await pool.asks(reader)
    line.say(*pieces)
    return reader, line


class TestAnswers:
    @pytest.mark.parametrize("name", ANSWERS)
    async def test_one_is_the_same_wherever_it_is_cut(self, pool: LinePool, name: str) -> None:
        data, status, body, is_kept = ANSWERS[name]
        each_byte = [data[at : at + 1] for at in range(len(data))]
        for pieces in ([data], each_byte, *([data[:at], data[at:]] for at in range(1, len(data)))):
            reader, line = await read(pool, pieces)
            assert (reader.status, reader.body, reader.error) == (status, body, None), pieces
            assert reader.told[0] == "head"
            assert reader.told[-1] == "end"
            assert line.is_cut is not is_kept
            line.lose()

    @pytest.mark.parametrize("name", NO_ANSWERS)
    async def test_what_is_none_is_an_error_wherever_it_is_cut(self, pool: LinePool, name: str) -> None:
        data, words = NO_ANSWERS[name]
        each_byte = [data[at : at + 1] for at in range(len(data))]
        for pieces in ([data], each_byte, *([data[:at], data[at:]] for at in range(1, len(data), 31))):
            reader, line = await read(pool, pieces)
            assert reader.told == ["broken"], pieces
            assert isinstance(reader.error, EngineGone)
            assert words in str(reader.error)
            assert line.is_cut
            line.lose()

    async def test_a_request_goes_out_in_one_write(self, pool: LinePool) -> None:
        _, line = await pool.asks(Reader(), b'{"a":1}')
        assert (
            bytes(line.sent) == b'POST /v1/x HTTP/1.1\r\nhost: engine:8000\r\na: b\r\ncontent-length: 7\r\n\r\n{"a":1}'
        )
        assert line.writes == 1

    async def test_a_body_may_have_a_lead(self, pool: LinePool) -> None:
        pool.request("POST", HERE, "/", [], memoryview(b'"b":2}'), taker=Reader(), lead=b'{"a":1,')
        await until(lambda: bool(pool.lines))
        await asyncio.sleep(0)
        assert pool.lines[0].sent.endswith(b'content-length: 13\r\n\r\n{"a":1,"b":2}')

    async def test_the_head_tells_headers_and_peer(self, pool: LinePool) -> None:
        reader, _ = await read(pool, [OK])
        assert reader.headers == (("content-type", "text/plain"), ("content-length", "2"))
        assert reader.peer == "192.0.2.7"
        assert pool.turns == 1

    async def test_each_read_is_one_turn(self, pool: LinePool) -> None:
        reader, line = await read(pool, [OK[:10], OK[10:-1], OK[-1:]])
        assert pool.turns == 3
        assert reader.told == ["head", "data", "data", "end"]
        line.lose()
        assert pool.turns == 3, "nothing was handed on"

    async def test_headers_that_connection_names_are_dropped_for_that_answer_only(self, pool: LinePool) -> None:
        named = b"Connection: Keep-Alive, X-Debug ,x-a\r\nX-Debug: 1\r\nX-A: 2\r\n"
        first = b"HTTP/1.1 200 OK\r\n" + named + b"b: 3\r\ncontent-length: 0\r\n\r\n"
        reader, line = await read(pool, [first])
        assert reader.headers == (("b", "3"), ("content-length", "0"))
        reader, again = await read(pool, [b"HTTP/1.1 200 OK\r\nx-debug: 1\r\ncontent-length: 0\r\n\r\n"])
        assert again is line
        assert reader.headers == (("x-debug", "1"), ("content-length", "0"))

    async def test_an_interim_answer_s_headers_are_not_the_final_one_s(self, pool: LinePool) -> None:
        reader, _ = await read(pool, [b"HTTP/1.1 103 Early Hints\r\nlink: a\r\nconnection: content-type\r\n\r\n" + OK])
        assert [name for name, _ in reader.headers] == ["content-type", "content-length"]

    @pytest.mark.parametrize("length", [b"content-length: 2", b"transfer-encoding: chunked"])
    async def test_an_interim_answer_s_length_is_not_the_final_one_s(self, pool: LinePool, length: bytes) -> None:
        interim = b"HTTP/1.1 103 Early Hints\r\n%b\r\n\r\n" % length
        reader, line = await read(pool, [interim + b"HTTP/1.1 200 OK\r\n\r\n", b"all of it"])
        line.lose()
        assert (reader.headers, reader.body, reader.has_ended) == ((), b"all of it", True)

    async def test_each_head_has_an_allowance_of_its_own(self, pool: LinePool) -> None:
        link = b"link: %b\r\n" % (b"a" * 40_000)
        reader, _ = await read(pool, [b"HTTP/1.1 103 Early Hints\r\n" + link + b"\r\n", OK[:17] + link + OK[17:]])
        assert (reader.error, reader.body) == (None, b"hi")

    async def test_trailers_are_not_told(self, pool: LinePool) -> None:
        reader, _ = await read(pool, [ANSWERS["chunks"][0]])
        assert reader.headers == (("Transfer-Encoding", "Chunked"),)

    @pytest.mark.parametrize("error", [None, ConnectionResetError("reset")])
    async def test_one_without_a_length_ends_with_its_connection(self, pool: LinePool, error: Exception | None) -> None:
        reader, line = await read(pool, [b"HTTP/1.1 200 OK\r\n\r\n", b"all ", b"of it"])
        assert not reader.is_over
        line.lose(error)
        assert reader.body == b"all of it"
        assert reader.has_ended is (error is None)

    @pytest.mark.parametrize(
        "answer",
        [
            b"",
            b"HTTP/1.1 2",
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n",
        ],
    )
    async def test_one_that_breaks_off_is_an_error_after_what_came(self, pool: LinePool, answer: bytes) -> None:
        reader, line = await read(pool, [answer])
        line.lose()
        assert isinstance(reader.error, EngineGone)
        assert reader.body == answer.partition(b"\r\n\r\n")[2].removeprefix(b"5\r\n").removesuffix(b"\r\n")
        assert reader.told[-1] == "broken"

    @pytest.mark.parametrize("first", ["length", "no-content", "not-modified", "chunks"])
    @pytest.mark.parametrize("cut_behind", [False, True])
    async def test_an_answer_behind_the_answer_is_never_read(
        self, pool: LinePool, first: str, cut_behind: bool
    ) -> None:
        data, status, body, _ = ANSWERS[first]
        second = b"HTTP/1.1 418 No\r\nx-smuggled: 1\r\ncontent-length: 2\r\n\r\nno"
        reader, line = await read(pool, [data, second] if cut_behind else [data + second])
        assert (reader.status, reader.body) == (status, body)
        assert "x-smuggled" not in dict(reader.headers)
        assert line.is_cut

    @pytest.mark.parametrize("noise", [b"x" * 1000, b"x: y\r\n" * 200, b"HTTP/1.1 100 Continue\r\n\r\n" * 60])
    @pytest.mark.parametrize("is_trailer", [False, True])
    async def test_headers_and_trailers_without_end_are_too_large(
        self, pool: LinePool, noise: bytes, is_trailer: bool
    ) -> None:
        head = b"HTTP/1.1 200 OK\r\n"
        if is_trailer:
            head += b"transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n"
        if noise.startswith(b"HTTP"):
            head = b"HTTP/1.1 100 Continue\r\n\r\n"
        reader, line = await read(pool, [head, *[noise] * 140])
        assert isinstance(reader.error, EngineGone)
        assert line.is_cut

    async def test_an_error_of_ours_inside_the_parser_is_no_fault_of_the_engine_s(
        self, pool: LinePool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(_: object) -> None:
            raise KeyError("ours")

        monkeypatch.setattr(ClientConnection, "on_headers_complete", fail)
        reader, line = await read(pool, [OK])
        assert isinstance(reader.error, KeyError)
        assert line.is_cut


@given(st.sampled_from(sorted(ANSWERS)), st.lists(st.integers(0, 1000), max_size=6))
def test_an_answer_may_come_in_any_number_of_pieces(name: str, cuts: list[int]) -> None:
    data, status, body, _ = ANSWERS[name]

    async def check() -> None:
        pool = LinePool()
        reader, _ = await read(pool, cut(data, cuts))
        assert (reader.status, reader.body, reader.has_ended) == (status, body, True)
        pool.close()

    asyncio.run(check())


class TestStopping:
    CHUNKS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"

    @pytest.mark.parametrize("word", ["head", "data"])
    @pytest.mark.parametrize("data", [OK, CHUNKS, b"HTTP/1.1 200 OK\r\n\r\nhi\r\n", CHUNKS + b"garbage"])
    async def test_inside_what_is_told_nothing_more_is_told(self, pool: LinePool, word: str, data: bytes) -> None:
        reader = Reader()
        exchange, line = await pool.asks(reader)
        reader.on_told = lambda told: exchange.stop() if told == word else None
        line.say(data)
        assert reader.told == ["head", "data"][: 1 + (word == "data")]
        assert line.is_cut
        line.lose()
        assert reader.told[-1] == word

    async def test_midway_cuts_the_connection(self, pool: LinePool) -> None:
        reader = Reader()
        exchange, line = await pool.asks(reader)
        line.say(self.CHUNKS[:-5])
        exchange.stop()
        assert line.is_cut
        line.lose()
        exchange.stop()
        assert reader.told == ["head", "data"]

    async def test_after_the_end_it_does_nothing(self, pool: LinePool) -> None:
        reader = Reader()
        exchange, line = await pool.asks(reader)
        line.say(OK)
        exchange.stop()
        assert not line.is_closed
        assert (await pool.asks(Reader()))[1] is line

    @pytest.mark.parametrize("turns", range(3))
    async def test_while_connecting_leaves_no_connection(self, pool: LinePool, turns: int) -> None:
        reader = Reader()
        exchange = pool.request("POST", HERE, "/", [], b"", taker=reader)
        for _ in range(turns):
            await asyncio.sleep(0)
        exchange.stop()
        for _ in range(5):
            await asyncio.sleep(0)
        assert all(line.is_cut for line in pool.lines)
        assert not reader.told


class TestPausing:
    async def test_nothing_is_read_until_it_resumes(self, pool: LinePool) -> None:
        exchange, line = await pool.asks(Reader())
        exchange.pause()
        exchange.pause()
        assert line.is_paused
        exchange.resume()
        exchange.resume()
        assert not line.is_paused

    async def test_a_pause_before_there_is_a_connection_counts(self, pool: LinePool) -> None:
        exchange = pool.request("POST", HERE, "/", [], b"", taker=Reader())
        exchange.pause()
        await until(lambda: bool(pool.lines))
        await asyncio.sleep(0)
        assert pool.lines[0].is_paused
        exchange.resume()
        assert not pool.lines[0].is_paused

    async def test_a_connection_whose_answer_ended_in_a_pause_is_used_again(self, pool: LinePool) -> None:
        reader = Reader()
        exchange, line = await pool.asks(reader)
        reader.on_told = lambda told: exchange.pause() if told == "data" else None
        line.say(OK)
        assert reader.has_ended
        assert not line.is_paused
        exchange.resume()
        exchange.pause()
        assert not line.is_paused
        assert (await read(pool, [OK]))[1] is line

    async def test_after_stop_and_the_end_neither_does_anything(self, pool: LinePool) -> None:
        exchange, line = await pool.asks(Reader())
        exchange.stop()
        exchange.pause()
        exchange.resume()
        line.lose()


class TestConnections:
    async def test_one_is_used_again_once_its_answer_was_read(self, pool: LinePool) -> None:
        for _ in range(3):
            assert (await read(pool, [OK]))[0].body == b"hi"
        assert len(pool.lines) == 1

    async def test_each_running_request_has_its_own(self, pool: LinePool) -> None:
        readers = [Reader(), Reader()]
        for reader in readers:
            pool.request("POST", HERE, "/", [], b"", taker=reader)
        await until(lambda: len(pool.lines) == 2)
        await asyncio.sleep(0)
        for line, body in zip(reversed(pool.lines), (b"ho", b"hi"), strict=True):
            line.say(OK.replace(b"hi", body))
        assert [reader.body for reader in readers] == [b"hi", b"ho"]

    async def test_the_latest_used_is_used_first(self, pool: LinePool) -> None:
        for _ in range(2):
            pool.request("POST", HERE, "/", [], b"", taker=Reader())
        await until(lambda: len(pool.lines) == 2)
        await asyncio.sleep(0)
        for line in reversed(pool.lines):
            line.say(OK)
            line.taken()
        pool.request("POST", HERE, "/", [], b"", taker=Reader())
        assert pool.lines[0].sent

    async def test_those_of_another_origin_are_its_own(self, pool: LinePool) -> None:
        await read(pool, [OK])
        pool.request("POST", HttpOrigin("engine", 8000, None), "/", [], b"", taker=Reader())
        await until(lambda: len(pool.lines) == 2)

    async def test_one_that_closed_while_idle_is_not_used(self, pool: LinePool) -> None:
        _, line = await read(pool, [OK])
        line.lose()
        reader, second = await read(pool, [OK])
        assert second is not line
        assert reader.has_ended

    @pytest.mark.parametrize("is_paused", [False, True])
    async def test_one_that_turns_out_closed_costs_nothing(self, pool: LinePool, is_paused: bool) -> None:
        _, first = await read(pool, [OK])
        reader = Reader()
        exchange = pool.request("POST", HERE, "/again", [], b"body", taker=reader)
        if is_paused:
            exchange.pause()
        first.lose(ConnectionResetError())
        assert not reader.told
        await until(lambda: len(pool.lines) == 2)
        await asyncio.sleep(0)
        second = pool.lines[1]
        assert second.sent.endswith(b"\r\n\r\nbody")
        assert second.is_paused is is_paused
        exchange.resume()
        second.say(OK)
        assert reader.has_ended

    async def test_one_that_closes_long_after_the_request_is_not_tried_again(
        self, pool: LinePool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The server may have worked on the request."""
        monkeypatch.setattr(client_module, "_RACE_S", 0.0)
        _, first = await read(pool, [OK])
        reader = Reader()
        pool.request("POST", HERE, "/", [], b"", taker=reader)
        first.lose()
        assert reader.told == ["broken"]
        assert len(pool.lines) == 1

    async def test_it_is_tried_again_once_only(self, pool: LinePool) -> None:
        _, first = await read(pool, [OK])
        reader = Reader()
        pool.request("POST", HERE, "/", [], b"", taker=reader)
        first.lose()
        await until(lambda: len(pool.lines) == 2)
        await asyncio.sleep(0)
        pool.lines[1].lose()
        assert reader.told == ["broken"]
        assert len(pool.lines) == 2

    async def test_a_new_one_is_not_tried_again(self, pool: LinePool) -> None:
        reader, line = await read(pool, [])
        line.lose()
        assert reader.told == ["broken"]
        assert len(pool.lines) == 1

    async def test_one_that_half_answered_is_not_tried_again(self, pool: LinePool) -> None:
        _, line = await read(pool, [OK])
        reader = Reader()
        pool.request("POST", HERE, "/", [], b"", taker=reader)
        line.say(b"HTTP/1.1 2")
        line.lose()
        assert reader.told == ["broken"]
        assert len(pool.lines) == 1

    async def test_one_that_is_stopped_is_not_tried_again(self, pool: LinePool) -> None:
        _, line = await read(pool, [OK])
        reader = Reader()
        exchange = pool.request("POST", HERE, "/", [], b"", taker=reader)
        exchange.stop()
        line.lose()
        await asyncio.sleep(0)
        assert not reader.told
        assert len(pool.lines) == 1

    async def test_what_comes_unasked_for_ends_it(self, pool: LinePool) -> None:
        _, line = await read(pool, [OK])
        line.say(OK.replace(b"hi", b"no"))
        assert line.is_cut
        assert (await read(pool, [OK]))[0].body == b"hi"
        assert len(pool.lines) == 2

    async def test_closing_closes_the_idle_at_once_and_the_others_when_they_are_done(self, pool: LinePool) -> None:
        reader = Reader()
        _, running = await pool.asks(reader)
        pool.request("POST", HERE, "/", [], b"", taker=Reader())
        await until(lambda: len(pool.lines) == 2)
        await asyncio.sleep(0)
        idle = pool.lines[1]
        idle.say(OK)
        pool.close()
        assert (idle.is_cut, running.is_cut) == (True, False)
        running.say(OK)
        assert reader.has_ended
        assert running.is_cut

    async def test_an_error_while_connecting_is_told(self, pool: LinePool) -> None:
        pool.failures = [ConnectionRefusedError("no"), KeyError("ours")]
        for kind in (ConnectionRefusedError, KeyError):
            reader = Reader()
            exchange = pool.request("POST", HERE, "/", [], b"", taker=reader)
            await until(lambda reader=reader: reader.is_over)  # type: ignore[misc]
            assert isinstance(reader.error, kind)
            exchange.stop()
        assert pool.turns == 2


class TestFetching:
    async def test_an_answer_is_read_whole(self, pool: LinePool) -> None:
        async with asyncio.TaskGroup() as tasks:
            fetching = tasks.create_task(pool.fetch("GET", HERE, "/", [], b"", bytes_max=2))
            await until(lambda: bool(pool.lines) and bool(pool.lines[0].sent))
            assert pool.lines[0].sent == b"GET / HTTP/1.1\r\nhost: engine:8000\r\n\r\n"
            pool.lines[0].say(OK[:-1], OK[-1:])
        page = fetching.result()
        assert (page.status, page.body, dict(page.headers)["content-type"]) == (200, b"hi", "text/plain")

    @pytest.mark.parametrize("answer", [OK, OK.replace(b"2", b"9"), b"nonsense"])
    async def test_no_more_than_so_much_of_it(self, pool: LinePool, answer: bytes) -> None:
        async def answers() -> None:
            await until(lambda: bool(pool.lines) and bool(pool.lines[0].sent))
            pool.lines[0].say(answer)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(answers())
            with pytest.raises(EngineGone):
                await pool.fetch("GET", HERE, "/", [], b"", bytes_max=1)
        assert pool.lines[0].is_closed or pool.lines[0] is (await pool.asks(Reader()))[1]

    async def test_giving_up_closes_the_connection(self, pool: LinePool) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await pool.fetch("GET", HERE, "/", [], b"", bytes_max=1)
        assert all(line.is_cut for line in pool.lines)


class TestHeads:
    @pytest.mark.parametrize("value", ["a\r\nx-evil: 1", "a\nb", "a\rb"])
    @pytest.mark.parametrize("where", ["name", "value", "path", "method"])
    def test_nothing_breaks_out_of_its_line(self, value: str, where: str) -> None:
        parts: dict[str, Any] = {"name": "x", "value": "y", "path": "/", "method": "GET", where: value}
        with pytest.raises(ValueError, match="break out"):
            request_head(parts["method"], HERE, parts["path"], [(parts["name"], parts["value"])], 0)

    @pytest.mark.parametrize(
        ("method", "length", "has_length"),
        [("GET", 0, False), ("GET", 2, True), ("DELETE", 0, False), ("POST", 0, True), ("HEAD", 0, False)],
    )
    def test_a_length_is_told_where_there_may_be_a_body(self, method: str, length: int, has_length: bool) -> None:
        head = request_head(method, HERE, "/", [], length)
        assert (b"content-length: %d\r\n" % length in head) is has_length

    def test_an_ipv6_host_stands_in_brackets(self) -> None:
        assert b"host: [::1]:80\r\n" in request_head("GET", HttpOrigin("::1", 80, None), "/", [], 0)

    def test_values_go_out_byte_for_byte(self) -> None:
        assert b"x: \xe6\x97\xff\r\n" in request_head("GET", HERE, "/", [("x", "\xe6\x97\xff")], 0)
        with pytest.raises(UnicodeEncodeError):
            request_head("GET", HERE, "/", [("x", "\u20ac")], 0)


# Over sockets


class RawEngine:
    """Server that runs one talk per connection and counts the connections."""

    def __init__(self, talk: Talk) -> None:
        self.connections = 0
        self.requests: list[bytes] = []
        self.gone = asyncio.Event()
        self._talk = talk

    @asynccontextmanager
    async def served(self, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[HttpOrigin]:
        async with listening(self._serve, tls=tls) as port:
            yield HttpOrigin("127.0.0.1", port, None)

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
async def sockets(idle_s: float = 5.0, connect_s: float = 2.0) -> AsyncIterator[ConnectionPool]:
    made = ConnectionPool(connect_s=connect_s, idle_s=idle_s)
    try:
        yield made
    finally:
        made.close()
        await asyncio.sleep(0)  # closing takes the event loop a turn


async def post(connections: ConnectionPool, origin: HttpOrigin, body: bytes = b"{}") -> bytes:
    return (await connections.fetch("POST", origin, "/v1/x", [], body, bytes_max=1 << 30)).body


async def test_a_request_and_its_answer() -> None:
    engine = answering(OK, OK)
    async with engine.served() as origin, sockets() as connections:
        for _ in range(2):
            assert await post(connections, origin, b'{"a":1}') == b"hi"
        assert engine.connections == 1
    assert engine.requests[0].startswith(b"POST /v1/x HTTP/1.1\r\nhost: 127.0.0.1:")
    assert engine.requests[0].endswith(b'content-length: 7\r\n\r\n{"a":1}')


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives up a vanished host within seconds")
async def test_the_system_asks_a_silent_engine_s_host_for_a_sign_of_life_and_gives_it_up_within_seconds() -> None:
    """An engine that is busy is not given up: no limit is on data that its host has not acknowledged."""
    engine = answering(OK)
    async with engine.served() as origin, sockets() as connections:
        connection = await connections.connect(origin)
        own = connection._transport.get_extra_info("socket")  # type: ignore[union-attr] # it is open
        assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        assert [own.getsockopt(socket.IPPROTO_TCP, name) for name in names] == [1, 1, 2, 0]
        connections.take_back(origin, connection)


def test_gateways_run_on_uvloop_whose_transports_are_not_quite_those_of_asyncio() -> None:
    async def two_requests() -> int:
        engine = answering(OK, OK)
        async with engine.served() as origin, sockets() as connections:
            for _ in range(2):
                assert await post(connections, origin) == b"hi"
        return engine.connections

    assert uvloop.run(two_requests()) == 1


def test_giving_up_while_a_name_is_looked_up_leaves_no_unread_error() -> None:
    """The lookup of uvloop goes on in a thread and fails when no task waits any more."""
    complaints: list[str] = []

    async def give_up() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
        async with sockets(connect_s=0.0) as connections:
            with pytest.raises(TimeoutError):
                await connections.connect(HttpOrigin("engine.invalid", 80, None))

    uvloop.run(give_up())  # ends after the lookup has
    gc.collect()
    assert not complaints


async def test_a_host_s_addresses_are_tried_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = answering(OK)
    async with engine.served() as origin, sockets() as connections:
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, origin.port))
            for address in ("127.0.0.9", origin.host)
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        assert await post(connections, HttpOrigin("engine.example", origin.port, None)) == b"hi"
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found[:1])
        with pytest.raises(ConnectionRefusedError) as refused:
            await connections.connect(HttpOrigin("engine.example", origin.port, None))
        kept = [entry.frame for entry in refused.traceback if refused.value in entry.frame.f_locals.values()]
        assert not kept[1:], "no frame of the client keeps the error: only a garbage collection would free both"
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [])
        with pytest.raises(OSError, match="no address is known"):
            await post(connections, HttpOrigin("engine.example", origin.port, None))


async def test_a_large_request_arrives_whole() -> None:
    engine = answering(OK)
    body = bytes(range(256)) * 40_000
    async with engine.served() as origin, sockets() as connections:
        assert await post(connections, origin, body) == b"hi"
    assert engine.requests[0].endswith(body)


async def test_with_tls_the_server_s_name_counts(tmp_path: Path) -> None:
    ca, files = new_ca(), Files(tmp_path)
    files.put(clients_leaf(ca))
    own = HttpTls(files.listen(), Clock()).context
    trust = ssl.create_default_context(cadata=roots_of(ca).decode())
    engine = answering(OK)
    async with engine.served(tls=own) as plain, sockets() as connections:
        assert await post(connections, HttpOrigin(plain.host, plain.port, trust)) == b"hi"
        with pytest.raises(ssl.SSLCertVerificationError):
            await post(connections, HttpOrigin(plain.host, plain.port, trust, "another.example"))


async def test_what_came_unasked_for_is_never_taken_for_the_next() -> None:
    """Holds also where the event loop has not yet reported the bytes."""
    writers: list[asyncio.StreamWriter] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await engine.read_request(reader)
        writer.write(OK)
        await reader.read()

    engine = RawEngine(talk)
    async with engine.served() as origin, sockets() as connections:
        assert await post(connections, origin) == b"hi"
        writers[0].write(OK.replace(b"hi", b"no"))
        assert await post(connections, origin) == b"hi"
        assert engine.connections == 2


async def test_a_connection_that_closes_just_as_it_is_used_costs_nothing() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read_request(reader)
        writer.write(OK)
        if engine.connections == 1:
            await engine.read_request(reader)  # closes without an answer
            return
        await reader.read()

    engine = RawEngine(talk)
    async with engine.served() as origin, sockets() as connections:
        assert await post(connections, origin) == b"hi"
        assert await post(connections, origin) == b"hi"
        assert engine.connections == 2


async def test_idle_connections_are_closed_after_their_time() -> None:
    engine = answering(OK)
    async with engine.served() as origin, sockets(idle_s=0.02) as connections:
        assert await post(connections, origin) == b"hi"
        await engine.gone.wait()


async def test_a_paused_answer_stops_the_engine_and_resuming_lets_it_go_on() -> None:
    total = 16 * 2**20
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
    async with engine.served() as origin, sockets() as connections:
        reader = Reader()
        exchange = connections.request("POST", origin, "/", [], b"", taker=reader)
        reader.on_told = lambda word: exchange.pause() if word == "head" else None
        await until(lambda: reader.status == 200)
        await blocked.wait()
        assert len(reader.body) < 2**20
        exchange.resume()
        await until(lambda: reader.has_ended)
        assert len(reader.body) == total


async def test_nobody_there() -> None:
    async with answering().served() as origin:
        pass
    async with sockets() as connections:
        with pytest.raises(ConnectionRefusedError):
            await post(connections, origin)


async def test_connecting_has_a_deadline_and_leaves_no_socket() -> None:
    """A server that never shakes hands; the connection that was made is cut."""
    gone = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del writer
        await reader.read()
        gone.set()

    async with listening(talk) as port, sockets(connect_s=0.05) as connections:
        with pytest.raises(TimeoutError):
            await post(connections, HttpOrigin("127.0.0.1", port, ssl.create_default_context()))
        await gone.wait()


@pytest.mark.parametrize("turns", range(6))
async def test_stopping_while_connecting_leaves_no_socket(turns: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with sockets() as connections:
            reader = Reader()
            exchange = connections.request(
                "POST", HttpOrigin("127.0.0.1", listener.getsockname()[1], None), "/", [], b"", taker=reader
            )
            for _ in range(turns):
                await asyncio.sleep(0)
            exchange.stop()
            await until(lambda: exchange._connecting is None or exchange._connecting.done())
            await asyncio.sleep(0)
            assert not reader.told
        listener.setblocking(False)
        try:
            caller, _ = listener.accept()
        except BlockingIOError:
            return
        with caller:
            caller.settimeout(10)
            with suppress(ConnectionResetError):
                assert caller.recv(1000) == b""
