"""The server of the clients' port: bytes in and bytes out, without a socket and without time."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http1 import server as server_module
from gateway.http1.server import READ_BYTES, Exchange, HttpFault, HttpServer, ServerConnection, ServerLimits
from tests.support.gateways import until
from tests.support.lines import Line
from tests.support.listening import listening_protocols

GET = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LIMITS = ServerLimits(
    connections_max=3,
    headers_bytes_max=2000,
    header_line_bytes_max=500,
    header_count_max=10,
    headers_s=10.0,
    idle_s=75.0,
    stall_s=60.0,
    silence_s=2.0,
)


class Site:
    """A server whose handler keeps what it is given, and whose clock a test moves. Unless `answers` is set to another
    function, each request is answered once its body is complete, with its method, target and body."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.turns = 0
        self.exchanges: list[Exchange] = []
        self.refused: list[HttpFault] = []
        self.bodies: dict[Exchange, bytes] = {}
        self.left: list[Exchange] = []
        self.answers: Callable[[Exchange], None] = self.echo
        self.server = HttpServer(self, LIMITS, on_turn=self.count_turn)
        self.server.time = lambda: self.now_s

    def count_turn(self) -> None:
        self.turns += 1

    def connect(self, line: Line | None = None) -> Line:
        line = line or Line()
        line.connect(self.server())
        return line

    def look(self, after_s: float) -> None:
        """Let time pass, and have the server act on it."""
        self.now_s += after_s
        for each in tuple(self.server.connections):
            each.look(self.now_s)

    # Handler

    def serve(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        self.bodies[exchange] = b""
        exchange.on_left = partial(self.left.append, exchange)
        self.answers(exchange)

    def refuse(self, fault: HttpFault) -> bytes:
        self.refused.append(fault)
        return f"refused: {fault}".encode()

    def echo(self, exchange: Exchange) -> None:
        exchange.on_body = partial(self.read, exchange)
        if not exchange.is_complete:
            exchange.go_on()
        self.read(exchange)

    def read(self, exchange: Exchange) -> None:
        self.bodies[exchange] += exchange.take_body()
        if exchange.is_malformed:
            exchange.respond(400, {}, b"malformed")
        elif exchange.is_complete:
            told = f"{exchange.method} {exchange.target.decode()} ".encode()
            exchange.respond(200, {}, told + self.bodies[exchange])

    def hold(self, exchange: Exchange) -> None:
        """Answer nothing: the test does."""


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    yield made
    made.server.close(at_once=True)


def ok(body: bytes, *lines: str) -> bytes:
    """Answer to a request as `echo` gives it."""
    more = "".join(f"{line}\r\n" for line in lines)
    return f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n{more}\r\n".encode() + body


CONVERSATIONS = {
    "get": (GET, ok(b"GET /a "), False),
    "query": (b"GET /a/b?c=%20d HTTP/1.1\r\nHost: x\r\n\r\n", ok(b"GET /a/b?c=%20d "), False),
    "lines-before": (b"\r\n\r\n" + GET, ok(b"GET /a "), False),
    "length": (
        b"POST /p HTTP/1.1\r\nhost: x\r\ncontent-length: 11\r\n\r\nhello\r\n\r\nGE",
        ok(b"POST /p hello\r\n\r\nGE"),
        False,
    ),
    "length-zero": (
        b"POST /p HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n" + GET,
        ok(b"POST /p ") + ok(b"GET /a "),
        False,
    ),
    "chunked": (
        b"POST /p HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        b"5;ext=1\r\nhello\r\nA\r\n 0123456\r\n\r\n0\r\nx-trailer: 1\r\n\r\n",
        ok(b"POST /p hello 0123456\r\n"),
        False,
    ),
    "pipelined": (
        b"POST /1 HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\none"
        b"POST /2 HTTP/1.1\r\nhost: x\r\ntransfer-encoding: Chunked\r\n\r\n3\r\ntwo\r\n0\r\n\r\n" + GET,
        ok(b"POST /1 one") + ok(b"POST /2 two") + ok(b"GET /a "),
        False,
    ),
    "upgrade": (
        b"GET /u HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n" + GET,
        ok(b"GET /u ") + ok(b"GET /a "),
        False,
    ),
    "upgrade-with-length": (
        b"POST /u HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 4\r\n\r\nbody" + GET,
        ok(b"POST /u body") + ok(b"GET /a "),
        False,
    ),
    "upgrade-with-chunks": (
        b"POST /u HTTP/1.1\r\nhost: x\r\nupgrade: h2c\r\nconnection: upgrade\r\ntransfer-encoding: chunked\r\n\r\n"
        b"4\r\nbody\r\n0\r\n\r\n" + GET,
        ok(b"POST /u body") + ok(b"GET /a "),
        False,
    ),
    "upgrade-and-close": (
        b"POST /u HTTP/1.1\r\nhost: x\r\nconnection: upgrade, close\r\nupgrade: h2c\r\ncontent-length: 4\r\n\r\nbody",
        ok(b"POST /u body", "connection: close"),
        True,
    ),
    "expect": (
        b"POST /e HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\nbody" + GET,
        ok(b"POST /e body") + ok(b"GET /a "),
        False,
    ),
    "close": (b"GET /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", ok(b"GET /a ", "connection: close"), True),
    "line-behind-close": (
        b"POST /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 1\r\n\r\nb\r\n",
        ok(b"POST /a b", "connection: close"),
        True,
    ),
    "1.0": (b"GET /a HTTP/1.0\r\n\r\n", ok(b"GET /a "), True),
    "1.0-keeps-alive": (
        b"GET /a HTTP/1.0\r\nconnection: keep-alive\r\n\r\nGET /b HTTP/1.0\r\n\r\n",
        ok(b"GET /a ", "connection: keep-alive") + ok(b"GET /b "),
        True,
    ),
    "1.0-expects-nothing": (
        b"POST /a HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\nhi",
        ok(b"POST /a hi"),
        True,
    ),
    "head": (
        b"HEAD /a HTTP/1.1\r\nhost: x\r\n\r\n" + GET,
        b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n" + ok(b"GET /a "),
        False,
    ),
    "delete": (b"DELETE /a HTTP/1.1\r\nhost: x\r\n\r\n" + GET, ok(b"DELETE /a ") + ok(b"GET /a "), False),
    "rare-method": (b"REPORT /a HTTP/1.1\r\nhost: x\r\n\r\n", ok(b"REPORT /a "), False),
}
"""Client's bytes, answers sent to it (interim ones apart), and whether the connection is closed then."""
FAULTS = {
    "no-http": (b"\x16\x03\x01\x02\x00\x01", HttpFault.INVALID_REQUEST),
    "no-version": (b"GET /\r\n\r\n", HttpFault.INVALID_REQUEST),
    "no-version-post": (b"POST /\r\n\r\n", HttpFault.INVALID_REQUEST),
    "no-host": (b"GET / HTTP/1.1\r\n\r\n", HttpFault.INVALID_REQUEST),
    "two-hosts": (b"GET / HTTP/1.1\r\nhost: x\r\nHost: x\r\n\r\n", HttpFault.INVALID_REQUEST),
    "http-2": (b"GET / HTTP/2.0\r\nhost: x\r\n\r\n", HttpFault.VERSION_NOT_SUPPORTED),
    "http-2-with-body": (b"POST / HTTP/2.0\r\nhost: x\r\ncontent-length: 1\r\n\r\na", HttpFault.VERSION_NOT_SUPPORTED),
    "upgrade-gzip": (
        b"POST / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\ntransfer-encoding: gzip\r\n\r\n",
        HttpFault.INVALID_TRANSFER_ENCODING,
    ),
    "gzip-chunked": (
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        HttpFault.INVALID_TRANSFER_ENCODING,
    ),
    "x-chunked": (
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: x, chunked\r\n\r\n0\r\n\r\n",
        HttpFault.INVALID_TRANSFER_ENCODING,
    ),
    "chunked-twice": (
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        HttpFault.INVALID_REQUEST,
    ),
    "chunked-1.0": (
        b"POST / HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        HttpFault.INVALID_TRANSFER_ENCODING,
    ),
    "length-and-chunks": (
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        HttpFault.INVALID_REQUEST,
    ),
    "two-lengths": (
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        HttpFault.INVALID_REQUEST,
    ),
    "space-in-name": (b"GET / HTTP/1.1\r\nhost: x\r\na b: c\r\n\r\n", HttpFault.INVALID_REQUEST),
    "folded": (b"GET / HTTP/1.1\r\nhost: x\r\na: b\r\n c\r\n\r\n", HttpFault.INVALID_REQUEST),
    **{
        f"control-{value:02x}": (b"GET / HTTP/1.1\r\nhost: x\r\na: b%cc\r\n\r\n" % value, HttpFault.INVALID_HEADER)
        for value in (0x01, 0x1B, 0x7F, 0x00)
    },
    "long-target": (b"GET /" + b"a" * 500 + b" HTTP/1.1\r\nhost: x\r\n\r\n", HttpFault.HEADERS_TOO_LARGE),
    "long-line": (b"GET / HTTP/1.1\r\nhost: x\r\na: " + b"b" * 500 + b"\r\n\r\n", HttpFault.HEADERS_TOO_LARGE),
    "many-headers": (
        b"GET / HTTP/1.1\r\nhost: x\r\n" + b"".join(b"a%d: b\r\n" % each for each in range(10)) + b"\r\n",
        HttpFault.HEADERS_TOO_LARGE,
    ),
    "many-times": (b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 11 + b"\r\n", HttpFault.HEADERS_TOO_LARGE),
    "large-headers": (
        b"GET / HTTP/1.1\r\nhost: x\r\n" + b"".join(b"a%d: %b\r\n" % (each, b"b" * 480) for each in range(5)) + b"\r\n",
        HttpFault.HEADERS_TOO_LARGE,
    ),
}


def cut(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    ends = [0, *sorted(each % (len(data) + 1) for each in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(ends)]


def said(site: Site, pieces: Iterable[bytes]) -> tuple[bytes, bool]:
    """Return the bytes that a connection sends if these pieces arrive, and whether it is closed then."""
    line = site.connect()
    line.say(*pieces)
    result = bytes(line.sent).replace(CONTINUE, b""), line.is_closed
    line.lose()
    return result


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_the_answers_are_the_same_wherever_the_input_is_cut(site: Site, name: str) -> None:
    data, answers, closes = CONVERSATIONS[name]
    assert said(site, [data]) == (answers, closes)
    for at in range(1, len(data)):
        assert said(site, [data[:at], data[at:]]) == (answers, closes), data[:at]
    assert said(site, [data[at : at + 1] for at in range(len(data))]) == (answers, closes)


@given(st.sampled_from(sorted(CONVERSATIONS)), st.lists(st.integers(0, 1000), max_size=6))
def test_and_in_any_number_of_pieces(name: str, cuts: list[int]) -> None:
    data, answers, closes = CONVERSATIONS[name]

    async def check() -> None:
        site = Site()
        assert said(site, cut(data, cuts)) == (answers, closes)
        site.server.close(at_once=True)

    asyncio.run(check())


@given(
    st.lists(
        st.sampled_from(
            [
                GET,
                b"POST /p HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
                b"POST /p HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi",
            ]
        ),
        min_size=1,
        max_size=5,
    ),
    st.lists(st.integers(0, 1000), max_size=6),
    st.booleans(),
)
def test_many_answers_come_in_order_whether_they_are_given_at_once_or_later(
    requests: list[bytes], cuts: list[int], is_late: bool
) -> None:
    expected = b"".join(ok(b"GET /a ") if each == GET else ok(b"POST /p hi") for each in requests)

    async def check() -> None:
        site = Site()
        if is_late:
            site.answers = site.hold
        line = site.connect()
        line.say(*cut(b"".join(requests), cuts))
        if is_late:
            answer_all(site)
        assert bytes(line.sent) == expected
        line.lose()
        site.server.close(at_once=True)

    asyncio.run(check())


def answer_all(site: Site) -> None:
    """Answer the requests that wait, and those whose turn comes then."""
    answered = 0
    while answered < len(site.exchanges):
        site.echo(site.exchanges[answered])
        answered += 1


@pytest.mark.parametrize("name", FAULTS)
async def test_what_is_not_a_request_is_refused_wherever_it_is_cut(site: Site, name: str) -> None:
    data, fault = FAULTS[name]
    expected = f"refused: {fault}".encode()
    for pieces in (
        [data],
        [data[at : at + 1] for at in range(len(data))],
        *([data[:at], data[at:]] for at in range(1, len(data))),
    ):
        line = site.connect()
        line.say(*pieces)
        assert bytes(line.sent) == expected, pieces[0]
        assert line.has_written_eof
        line.lose()
    assert not site.exchanges


@pytest.mark.parametrize("coding", [b"chunked", b"Chunked", b" chunked "])
async def test_chunks_are_taken_however_they_are_written(site: Site, coding: bytes) -> None:
    head = b"POST /p HTTP/1.1\r\nhost: x\r\ntransfer-encoding:" + coding + b"\r\n\r\n"
    assert said(site, [head + b"1\r\na\r\n0\r\n\r\n"]) == (ok(b"POST /p a"), False)


async def test_any_byte_but_a_control_character_may_stand_in_a_header(site: Site) -> None:
    sent = bytes([9, *range(32, 127), *range(128, 256)])
    site.connect().say(b"GET / HTTP/1.1\r\nhost: x\r\nUser-Agent: (" + sent + b")\r\n\r\n")
    assert site.exchanges[0].headers["user-agent"].encode("latin-1") == b"(" + sent + b")"


async def test_headers_keep_their_first_value_and_all_of_them(site: Site) -> None:
    site.connect().say(b"GET / HTTP/1.1\r\nHOST: x\r\nA: 1\r\nb: 2\r\na: 3\r\na: 4\r\n\r\n")
    headers = site.exchanges[0].headers
    assert dict(headers) == {"host": "x", "a": "1", "b": "2"}
    assert [headers.getall(name) for name in ("a", "b", "c")] == [["1", "3", "4"], ["2"], []]


async def test_trailers_are_no_headers(site: Site) -> None:
    line = site.connect()
    line.say(
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\nauthorization: a\r\nhost: y\r\n\r\n"
    )
    assert set(site.exchanges[0].headers) == {"host", "transfer-encoding"}
    assert bytes(line.sent).startswith(b"HTTP/1.1 200 ")


async def test_a_coded_body_is_handed_on_as_it_is(site: Site) -> None:
    site.connect().say(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\nzzzz")
    assert list(site.bodies.values()) == [b"zzzz"]


async def test_the_peer_s_address_is_told_as_long_as_there_is_one(site: Site) -> None:
    site.answers = site.hold
    line = site.connect()
    line.say(GET)
    assert site.exchanges[0].peer_address == "192.0.2.1"
    line.lose()
    assert site.exchanges[0].peer_address is None
    for peername in (None, "", "/run/socket", ()):
        line = site.connect(Line(peername=peername))
        line.say(GET)
        assert site.exchanges[-1].peer_address is None
        line.lose()


class TestTurns:
    async def test_each_read_is_one_turn_however_much_it_brings(self, site: Site) -> None:
        line = site.connect()
        for data in (GET, GET * 20, GET[:7], GET[7:] + GET):
            before = site.turns
            line.say(data)
            assert site.turns == before + 1

    async def test_room_in_the_buffer_and_the_end_are_turns_too(self, site: Site) -> None:
        site.answers = site.hold
        line = site.connect()
        line.say(GET)
        line.is_stuck = True
        exchange = site.exchanges[0]
        exchange.start(200, "", has_length=False)
        assert not exchange.write(bytes(100_000))
        assert site.turns == 1
        line.take_all()
        assert site.turns == 2
        line.lose()
        assert site.turns == 3


class TestPipelining:
    async def test_tens_of_thousands_at_once_are_answered_without_recursion(self, site: Site) -> None:
        line = site.connect()
        count = 10_000
        assert count > sys.getrecursionlimit()
        line.say(GET * count)
        assert bytes(line.sent) == ok(b"GET /a ") * count
        assert not line.is_closed

    async def test_a_request_waits_until_the_one_before_is_answered(self, site: Site) -> None:
        site.answers = site.hold
        line = site.connect()
        line.say(GET + GET.replace(b"/a", b"/b"))
        assert [each.target for each in site.exchanges] == [b"/a"]
        site.exchanges[0].respond(204, {}, b"")
        assert [each.target for each in site.exchanges] == [b"/a", b"/b"]
        site.exchanges[1].respond(200, {}, b"b")
        assert bytes(line.sent) == b"HTTP/1.1 204 No Content\r\n\r\n" + ok(b"b")

    async def test_so_many_may_wait_and_no_more(self, site: Site) -> None:
        site.answers = site.hold
        line = site.connect()
        line.say(GET, GET * 64)
        assert not line.is_cut
        line.say(GET)
        assert line.is_cut
        line.lose()
        assert site.left == site.exchanges[:1]

    async def test_bodies_that_wait_are_counted(self, site: Site) -> None:
        site.answers = site.hold
        line = site.connect()
        post = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n" + bytes(100_000)
        line.say(GET, post, post)
        assert not line.is_cut
        line.say(post)
        assert line.is_cut

    async def test_a_client_that_reads_nothing_is_answered_no_more(self, site: Site) -> None:
        site.answers = lambda exchange: exchange.respond(200, {}, bytes(70_000))
        line = site.connect()
        line.is_stuck = True
        line.say(GET * 64)
        assert len(site.exchanges) == 1
        line.say(GET, GET, GET)
        assert line.is_cut
        assert len(site.exchanges) == 1

    async def test_headers_that_wait_are_counted(self, site: Site) -> None:
        site.server = HttpServer(site, replace(LIMITS, headers_bytes_max=60_000, header_line_bytes_max=60_000))
        site.answers = site.hold
        line = site.connect()
        get = b"GET /a HTTP/1.1\r\nhost: x\r\nx-more: " + b"a" * 52_000 + b"\r\n\r\n"
        line.say(GET, get, get, get, get, get)
        assert not line.is_cut
        line.say(get)
        assert line.is_cut

    async def test_those_that_were_served_are_not(self, site: Site) -> None:
        site.answers = site.hold
        line = site.connect()
        post = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n" + bytes(100_000)
        for _ in range(10):
            line.say(GET, post)
            site.echo(site.exchanges[-1])
            site.echo(site.exchanges[-1])
        assert not line.is_cut
        assert len(site.exchanges) == 20

    async def test_behind_an_answer_that_closes_none_is_served(self, site: Site) -> None:
        site.answers = site.hold
        line = site.connect()
        line.say(GET + GET)
        site.exchanges[0].must_close()
        site.exchanges[0].respond(200, {}, b"")
        assert len(site.exchanges) == 1
        assert line.is_closed
        assert b"connection: close" in line.sent

    async def test_a_fault_behind_a_request_is_told_after_its_answer(self, site: Site) -> None:
        site.answers = site.hold
        line = site.connect()
        line.say(GET, GET + b"\x00")
        assert not line.sent
        site.exchanges[0].respond(200, {}, b"")
        assert bytes(line.sent) == ok(b"") + b"refused: invalid_request"
        assert len(site.exchanges) == 1

    @pytest.mark.parametrize("more", [GET, b"\x00\x00"])
    async def test_bytes_that_come_together_with_a_last_request_refuse_it(self, site: Site, more: bytes) -> None:
        """The end of the request is ambiguous then."""
        line = site.connect()
        line.say(b"GET /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" + more)
        assert bytes(line.sent) == b"refused: invalid_request"
        assert not site.exchanges

    async def test_nothing_is_said_behind_an_answer_that_closes(self, site: Site) -> None:
        line = site.connect()
        site.answers = site.hold
        line.say(b"GET /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", b"\x00")
        site.echo(site.exchanges[-1])
        assert bytes(line.sent) == ok(b"GET /a ", "connection: close")
        assert line.is_closed


class TestBodies:
    POST = b"POST /p HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"

    async def test_reading_pauses_until_the_body_is_taken(self, site: Site) -> None:
        site.answers = site.hold
        line = site.connect()
        line.say(self.POST, bytes(READ_BYTES))
        assert not line.is_paused
        line.say(b"\x00")
        assert line.is_paused
        exchange = site.exchanges[0]
        assert exchange.body_bytes == READ_BYTES + 1
        assert exchange.take_body() == bytes(READ_BYTES + 1)
        assert not line.is_paused
        assert exchange.take_body() == b""

    async def test_news_are_told_once_each(self, site: Site) -> None:
        told: list[tuple[int, bool]] = []

        def listen(exchange: Exchange) -> None:
            told.append((exchange.body_bytes, exchange.is_complete))
            exchange.on_body = lambda: told.append((exchange.body_bytes, exchange.is_complete))

        site.answers = listen
        line = site.connect()
        line.say(
            b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
            b"2\r\n",
            b"ab\r\n3\r\ncde",
            b"\r\n0\r\n\r\n",
            GET,
        )
        assert told == [(0, False), (5, False), (5, True)]

    async def test_a_paused_connection_goes_on_after_the_answer(self, site: Site) -> None:
        """The body was complete, and nothing took it."""
        site.answers = site.hold
        line = site.connect()
        line.say(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n", bytes(100_000))
        assert line.is_paused
        site.exchanges[0].respond(403, {}, b"")
        assert not line.is_paused
        line.taken()
        site.answers = site.echo
        line.say(GET)
        assert line.taken() == ok(b"GET /a ")

    async def test_a_refused_request_s_body_is_drained_and_the_connection_goes_on(self, site: Site) -> None:
        site.answers = lambda exchange: exchange.respond(403, {}, b"no")
        line = site.connect()
        line.say(self.POST, *[bytes(100_000)] * 9)
        assert site.exchanges[0].body_bytes == 0
        assert line.taken() == b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno"
        site.answers = site.echo
        line.say(bytes(100_000) + GET)
        assert line.taken() == ok(b"GET /a ")
        assert len(site.exchanges) == 2

    async def test_one_that_closes_is_drained_before(self, site: Site) -> None:
        def refuse(exchange: Exchange) -> None:
            exchange.must_close()
            exchange.respond(403, {}, b"no")

        site.answers = refuse
        line = site.connect()
        line.say(self.POST, bytes(999_999))
        assert bytes(line.sent) == b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno"
        assert not line.is_closed
        line.say(b"\x00" + GET)
        assert line.is_closed
        assert len(site.exchanges) == 1

    async def test_draining_does_not_take_for_ever(self, site: Site) -> None:
        site.answers = lambda exchange: exchange.respond(403, {}, b"no")
        line = site.connect()
        line.say(self.POST)
        for _ in range(3):
            line.say(b"\x00")
            site.look(3.0)
        assert not line.is_closed
        site.look(1.0)
        assert line.is_closed

    async def test_a_paused_upload_that_is_refused_is_read_on(self, site: Site) -> None:
        site.answers = site.hold
        line = site.connect()
        line.say(self.POST, bytes(100_000))
        assert line.is_paused
        site.exchanges[0].respond(403, {}, b"no")
        assert not line.is_paused

    @pytest.mark.parametrize("pieces", [1, 2])
    async def test_a_malformed_body_is_told_to_the_one_that_waits_for_it(self, site: Site, pieces: int) -> None:
        head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"
        line = site.connect()
        if pieces == 1:
            line.say(head + b"zz\r\n" + GET)
            assert bytes(line.sent) == b"refused: invalid_request"
            return
        line.say(head, b"zz\r\n" + GET)
        assert (
            bytes(line.sent) == b"HTTP/1.1 400 Bad Request\r\ncontent-length: 9\r\nconnection: close\r\n\r\nmalformed"
        )
        assert line.is_closed
        assert not site.refused

    async def test_it_closes_even_if_the_answer_had_begun(self, site: Site) -> None:
        site.answers = site.hold
        line = site.connect()
        line.say(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
        site.exchanges[0].start(200, "", has_length=False)
        line.say(b"zz\r\n")
        assert site.exchanges[0].is_malformed
        site.exchanges[0].finish()
        assert line.is_closed

    @pytest.mark.parametrize("noise", [b"x: " + b"y" * 100, b"x: y\r\n" * 20], ids=["one", "many"])
    async def test_trailers_without_end_are_too_large(self, site: Site, noise: bytes) -> None:
        line = site.connect()
        line.say(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n", noise)
        line.say(*[b"y" * 100 if b"\n" not in noise else noise] * 20)
        assert bytes(line.sent).startswith(b"HTTP/1.1 400 ")
        assert line.is_closed

    async def test_a_head_does_not_count_to_what_follows(self, site: Site) -> None:
        head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n" + b"a: %b\r\n" % (b"b" * 400) * 4
        line = site.connect()
        line.say(head, b"c: %b\r\n" % (b"d" * (1990 - len(head) - 5)), b"\r\n", b"00001\r\n", b"a\r\n", b"0\r\n\r\n")
        assert line.taken() == ok(b"POST / a")

    async def test_small_chunks_are_not(self, site: Site) -> None:
        line = site.connect()
        line.say(
            b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
            *[b"1\r\n", b"a\r\n"] * 2000,
            b"0\r\n\r\n",
        )
        assert line.taken() == ok(b"POST / " + b"a" * 2000)


class TestExpecting:
    POST = b"POST /e HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n"

    async def test_it_is_told_to_go_on_once(self, site: Site) -> None:
        line = site.connect()
        line.say(self.POST)
        assert line.taken() == CONTINUE
        site.exchanges[0].go_on()
        line.say(b"body")
        assert line.taken() == ok(b"POST /e body")
        assert not line.is_closed

    async def test_one_that_did_not_wait_is_not(self, site: Site) -> None:
        line = site.connect()
        line.say(self.POST + b"b", b"ody")
        assert line.taken() == ok(b"POST /e body")

    async def test_one_that_is_refused_is_not_and_its_connection_is_closed(self, site: Site) -> None:
        """The body may follow or not, so that the next bytes are ambiguous."""
        site.answers = lambda exchange: exchange.respond(413, {}, b"")
        line = site.connect()
        line.say(self.POST)
        assert b"connection: close\r\n" in line.sent
        assert CONTINUE not in line.sent
        assert line.is_closed

    async def test_without_a_body_there_is_nothing_to_wait_for(self, site: Site) -> None:
        site.answers = lambda exchange: exchange.respond(413, {}, b"")
        line = site.connect()
        line.say(b"GET / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n\r\n")
        assert not line.is_closed


class TestAnswers:
    @pytest.fixture
    async def line(self, site: Site) -> Line:
        site.answers = site.hold
        return site.connect()

    def asked(self, site: Site, line: Line, request: bytes = GET) -> Exchange:
        line.say(request)
        return site.exchanges[-1]

    async def test_the_head_goes_out_with_the_first_bytes(self, site: Site, line: Line) -> None:
        exchange = self.asked(site, line)
        exchange.start(200, "a: b\r\n", has_length=True)
        assert not line.sent
        assert exchange.write(b"cd")
        assert line.writes == 1
        assert bytes(line.sent) == b"HTTP/1.1 200 OK\r\na: b\r\n\r\ncd"
        assert not exchange.is_over
        exchange.finish()
        assert exchange.is_over
        assert line.writes == 1
        exchange.finish()

    async def test_a_body_of_unknown_length_is_chunked(self, site: Site, line: Line) -> None:
        exchange = self.asked(site, line)
        exchange.start(200, "", has_length=False)
        exchange.write(b"hello world, hello")
        exchange.write(b"")
        exchange.finish()
        assert bytes(line.sent) == (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n12\r\nhello world, hello\r\n0\r\n\r\n"
        )
        assert not line.is_closed

    async def test_over_1_0_it_ends_with_the_connection(self, site: Site, line: Line) -> None:
        exchange = self.asked(site, line, b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
        exchange.start(200, "", has_length=False)
        exchange.write(b"hello")
        exchange.finish()
        assert bytes(line.sent) == b"HTTP/1.1 200 OK\r\n\r\nhello"
        assert line.is_closed

    async def test_an_empty_one_is_sent_at_its_end(self, site: Site, line: Line) -> None:
        exchange = self.asked(site, line)
        exchange.start(200, "", has_length=False)
        exchange.finish()
        assert bytes(line.sent) == b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"

    @pytest.mark.parametrize("status", [204, 304])
    async def test_one_that_has_no_body_has_no_framing(self, site: Site, line: Line, status: int) -> None:
        """A client would take the last chunk for the next answer."""
        exchange = self.asked(site, line)
        exchange.start(status, "", has_length=False)
        exchange.finish()
        self.asked(site, line).respond(status, {"a": "b"}, b"")
        head = b"HTTP/1.1 204 No Content\r\n" if status == 204 else b"HTTP/1.1 304 Not Modified\r\n"
        assert bytes(line.sent) == head + b"\r\n" + head + b"a: b\r\n\r\n"
        assert not line.is_closed

    @pytest.mark.parametrize("status", [599, 299])
    async def test_a_status_without_a_name_has_none(self, site: Site, line: Line, status: int) -> None:
        self.asked(site, line).respond(status, {}, b"")
        assert bytes(line.sent).startswith(b"HTTP/1.1 %d \r\n" % status)

    async def test_header_values_go_out_as_bytes(self, site: Site, line: Line) -> None:
        self.asked(site, line).respond(200, {"a": "\xe4\u20ac"}, b"")
        assert b"a: \xe4?\r\n" in line.sent

    async def test_a_full_buffer_is_told_and_so_is_room(self, site: Site, line: Line) -> None:
        exchange = self.asked(site, line)
        told: list[bool] = []
        exchange.on_writable = lambda: told.append(True)
        exchange.start(200, "", has_length=False)
        line.is_stuck = True
        assert exchange.write(bytes(1000))
        assert not exchange.write(bytes(70_000))
        assert not exchange.write(b"more")
        assert not told
        line.take_all()
        assert told == [True]
        assert exchange.write(b"more")

    async def test_an_answer_may_end_while_the_buffer_is_full(self, site: Site, line: Line) -> None:
        exchange = self.asked(site, line, GET + GET)
        line.is_stuck = True
        exchange.respond(200, {}, bytes(70_000))
        assert site.exchanges == [exchange], "the next answer waits until the client has read"
        line.take_all()
        (_, following) = site.exchanges
        following.respond(200, {}, b"x")
        assert bytes(line.sent).endswith(ok(b"x"))

    async def test_one_that_ends_when_there_is_room_lets_the_next_in(self, site: Site, line: Line) -> None:
        exchange = self.asked(site, line, GET + GET)
        line.is_stuck = True
        exchange.start(200, "", has_length=False)
        exchange.write(bytes(70_000))
        exchange.on_writable = exchange.finish
        line.take_all()
        assert len(site.exchanges) == 2

    async def test_aborting_cuts_the_connection(self, site: Site, line: Line) -> None:
        exchange = self.asked(site, line)
        exchange.start(200, "content-length: 10\r\n", has_length=True)
        exchange.write(b"half")
        exchange.abort()
        assert line.is_cut
        line.lose()
        assert not site.left, "it knows"

    async def test_leaving_is_noted_in_every_answer(self, site: Site, line: Line) -> None:
        line.say(GET + GET)
        site.server.is_leaving = True
        site.exchanges[0].respond(200, {}, b"")
        assert bytes(line.sent) == ok(b"", "connection: close")
        assert line.is_closed
        assert len(site.exchanges) == 1

    async def test_an_answer_that_began_before_keeps_its_word(self, site: Site, line: Line) -> None:
        exchange = self.asked(site, line)
        exchange.start(200, "", has_length=False)
        site.server.is_leaving = True
        exchange.finish()
        assert not line.is_closed


class TestLeaving:
    """A client may leave at any time."""

    @pytest.mark.parametrize("error", [None, ConnectionResetError()])
    async def test_before_a_request(self, site: Site, error: Exception | None) -> None:
        line = site.connect()
        assert site.server.open_connections == 1
        line.lose(error)
        assert site.server.open_connections == 0

    async def test_in_a_head(self, site: Site) -> None:
        line = site.connect()
        line.say(GET[:10])
        line.lose()
        assert not site.exchanges

    async def test_in_a_body(self, site: Site) -> None:
        line = site.connect()
        line.say(TestBodies.POST + b"abc")
        line.lose()
        assert site.left == site.exchanges
        assert site.exchanges[0].take_body() == b""
        assert not site.exchanges[0].is_complete

    async def test_before_its_answer_and_during_it(self, site: Site) -> None:
        site.answers = site.hold
        for has_begun in (False, True):
            line = site.connect()
            line.say(GET + GET)
            exchange = site.exchanges[-1]
            if has_begun:
                exchange.start(200, "", has_length=False)
                exchange.write(b"half")
            line.lose()
            assert site.left.pop() is exchange
            assert exchange.is_over
            assert exchange.is_closing
            sent = bytes(line.sent)
            assert exchange.write(b"lost"), "there is no buffer that is full"
            exchange.go_on()
            exchange.finish()
            exchange.abort()
            assert bytes(line.sent) == sent
            assert len(site.exchanges) == 1 + has_begun, "the next one is not served"

    async def test_after_its_answer(self, site: Site) -> None:
        line = site.connect()
        line.say(GET)
        line.lose()
        assert not site.left

    async def test_while_its_body_is_drained(self, site: Site) -> None:
        site.answers = lambda exchange: exchange.respond(403, {}, b"no")
        line = site.connect()
        line.say(TestBodies.POST)
        line.lose()
        assert not site.left

    async def test_while_the_buffer_is_full(self, site: Site) -> None:
        site.answers = site.hold
        line = site.connect()
        line.say(GET)
        line.is_stuck = True
        site.exchanges[0].start(200, "", has_length=False)
        assert not site.exchanges[0].write(bytes(70_000))
        line.lose()
        assert site.left == site.exchanges

    async def test_one_that_closes_its_side_has_left(self, site: Site) -> None:
        site.answers = site.hold
        line = site.connect()
        line.say(GET)
        line.half_close()
        assert site.left == site.exchanges


class TestTime:
    @pytest.mark.parametrize("first", [b"G", GET[:-2], GET[:-1]])
    async def test_a_head_has_a_deadline(self, site: Site, first: bytes) -> None:
        line = site.connect()
        site.look(70.0)
        line.say(first)
        site.look(9.9)
        assert not line.sent
        site.look(0.1)
        assert bytes(line.sent) == b"refused: headers_incomplete"
        assert line.has_written_eof

    async def test_that_bytes_do_not_move(self, site: Site) -> None:
        line = site.connect()
        for at in range(10):
            line.say(GET[at : at + 1])
            site.look(1.0)
        assert bytes(line.sent) == b"refused: headers_incomplete"

    async def test_one_behind_another_request_has_its_own(self, site: Site) -> None:
        line = site.connect()
        line.say(GET)
        site.look(20.0)
        line.say(GET + GET[:5])
        line.taken()
        site.look(9.9)
        assert not line.sent
        site.look(0.1)
        assert line.taken() == b"refused: headers_incomplete"

    async def test_a_whole_request_has_none(self, site: Site) -> None:
        site.answers = site.hold
        line = site.connect()
        line.say(GET + GET[:5])
        site.look(10_000.0)
        assert not line.is_closed
        assert not line.sent

    async def test_nor_has_a_body_which_its_reader_gives_up(self, site: Site) -> None:
        line = site.connect()
        line.say(TestBodies.POST)
        site.look(10_000.0)
        assert not line.is_closed

    async def test_an_idle_connection_is_closed_without_a_word(self, site: Site) -> None:
        line = site.connect()
        site.look(74.9)
        assert not line.is_closed
        site.look(0.1)
        assert line.is_closed
        assert not line.sent

    async def test_idle_is_the_time_since_the_last_answer(self, site: Site) -> None:
        line = site.connect()
        site.look(70.0)
        line.say(GET)
        site.look(74.9)
        assert not line.is_closed
        site.look(0.1)
        assert line.is_closed

    async def test_one_that_reads_nothing_is_cut(self, site: Site) -> None:
        site.answers = site.hold
        line = site.connect()
        line.say(GET)
        line.is_stuck = True
        site.exchanges[0].start(200, "", has_length=False)
        site.exchanges[0].write(bytes(70_000))
        site.look(59.9)
        assert not line.is_cut
        site.look(0.1)
        assert line.is_cut

    async def test_room_in_between_counts(self, site: Site) -> None:
        site.answers = site.hold
        line = site.connect()
        line.say(GET)
        site.exchanges[0].start(200, "", has_length=False)
        for _ in range(3):
            line.is_stuck = True
            site.exchanges[0].write(bytes(70_000))
            site.look(40.0)
            line.take_all()
        assert not line.is_cut

    async def test_a_refused_one_may_read_the_reason_for_a_moment(self, site: Site) -> None:
        line = site.connect()
        line.say(b"\x00")
        line.say(GET)
        assert not site.exchanges
        site.look(0.9)
        assert not line.is_cut
        site.look(0.1)
        assert line.is_cut

    async def test_with_tls_there_is_no_half_an_end(self, site: Site) -> None:
        line = site.connect(Line(can_write_eof=False))
        line.say(b"\x00")
        assert bytes(line.sent) == b"refused: invalid_request"
        assert line.is_closed

    async def test_the_server_looks_by_itself(self) -> None:
        limits = replace(LIMITS, idle_s=0.02)
        made = Site()
        server = HttpServer(made, limits)
        line = Line()
        line.connect(server())
        await until(lambda: line.is_closed)
        line.lose()
        server.close(at_once=True)


class TestConnections:
    async def test_no_more_than_so_many_and_the_rest_are_told(self, site: Site) -> None:
        lines = [site.connect() for _ in range(LIMITS.connections_max)]
        line = site.connect()
        assert bytes(line.sent) == b"refused: too_many_connections"
        assert line.has_written_eof
        line.say(GET)
        assert not site.exchanges
        assert site.server.open_connections == LIMITS.connections_max
        line.lose()
        assert not site.server.goodbyes
        lines[0].lose()
        assert not site.connect().sent
        assert not site.server.has_unmade

    async def test_a_refused_one_is_cut_after_a_moment(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server_module, "_GOODBYE_S", 0.01)
        lines = [site.connect() for _ in range(LIMITS.connections_max + 1)]
        await until(lambda: lines[-1].is_cut)
        lines[-1].lose()

    async def test_so_many_are_told_at_a_time(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server_module, "_GOODBYES_MAX", 2)
        lines = [site.connect() for _ in range(LIMITS.connections_max + 3)]
        assert [bool(line.sent) for line in lines[-3:]] == [True, True, False]
        assert lines[-1].is_cut
        for line in lines:
            line.lose()

    async def test_without_half_an_end_a_refused_one_is_closed(self, site: Site) -> None:
        for _ in range(LIMITS.connections_max):
            site.connect()
        line = site.connect(Line(can_write_eof=False))
        assert line.is_closed
        line.lose()

    async def test_a_handshake_that_is_not_over_is_known(self, site: Site) -> None:
        protocol = site.server()
        assert site.server.has_unmade
        assert site.server.open_connections == 0
        Line().connect(protocol)
        assert not site.server.has_unmade

    async def test_closing_lets_complete_answers_out_or_cuts(self, site: Site) -> None:
        lines = [site.connect(), site.connect()]
        site.server.close(at_once=False)
        assert [(line.is_closed, line.is_cut) for line in lines] == [(True, False)] * 2
        site.server.close(at_once=True)
        assert all(line.is_cut for line in lines)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(site.server.until_empty())
            await asyncio.sleep(0)
            lines[0].lose()
            await asyncio.sleep(0)
            assert not waiting.done()
            lines[1].lose()

    @pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux gives up what nobody takes")
    async def test_the_system_cuts_a_connection_whose_other_end_takes_nothing(self, site: Site) -> None:
        """Data that nothing acknowledges ends it, and probes while no data is on its way."""
        told: list[int] = []

        def look(exchange: Exchange) -> None:
            (connection,) = site.server.connections
            own = connection.transport.get_extra_info("socket")  # type: ignore[union-attr] # it is open
            told.append(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
            told.append(own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
            told.append(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE))
            told.append(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL))
            connection.look(site.now_s)
            told.append(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE))
            exchange.respond(200, {}, b"hello")

        site.answers = look
        async with listening_protocols(site.server) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET)
            assert await reader.readexactly(len(ok(b"hello"))) == ok(b"hello")
            writer.close()
            await writer.wait_closed()
            await site.server.until_empty()
        assert told == [60_000, 1, 15, 1, 1], "it lives, and is asked each second while its request runs"


async def test_a_connection_is_a_protocol_of_its_own_size(site: Site) -> None:
    """Tens of thousands of them may be idle."""
    assert not hasattr(site.server(), "__dict__")
    assert ServerConnection.__slots__
