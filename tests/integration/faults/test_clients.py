"""Faults of clients, by mistake or on purpose, over bare sockets: no resource stays in use, at home or across
regions.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.config.sections import GatewayConfig
from tests.fakes.engine import (
    DONE,
    GOOD_STREAM,
    JSON_HEADERS,
    ROLE,
    SSE_HEADERS,
    STOP,
    Exchange,
    Tally,
    answer,
    hang,
    stream_until,
    token,
)
from tests.support.aftermath import BODY_BYTES_MAX, REQUESTS_MAX, Stand, connections_at, stand
from tests.support.core import MS
from tests.support.gateways import counted, until
from tests.support.wire import CHAT_BODY, CHAT_PATH, Wire, posted, wire

GOOD = b"".join(GOOD_STREAM)
BEGUN = (ROLE, token("x"))
Stands = Callable[..., AbstractAsyncContextManager[Stand]]


@pytest.fixture
def stands(tmp_path: Path, unused_tcp_port_factory: Callable[[], int], caplog: pytest.LogCaptureFixture) -> Stands:
    caplog.set_level(logging.CRITICAL, "grpc._cython.cygrpc")  # a kept record keeps its traceback's objects

    def make(**options: Any) -> AbstractAsyncContextManager[Stand]:
        return stand(tmp_path, unused_tcp_port_factory, **options)

    return make


def with_limits(**limits: int) -> Callable[[GatewayConfig], GatewayConfig]:
    return lambda config: replace(config, limits=replace(config.limits, **limits))


# Clients that leave


async def in_the_headers(stand: Stand, client: Wire) -> None:
    client.send(f"POST {CHAT_PATH} HTTP/1.1\r\nhost: x\r\ncontent-le")
    await until(lambda: connections_at(stand.gateway.http_address.port) == 1)


async def in_the_body(stand: Stand, client: Wire) -> None:
    client.send(posted()[:-10])
    await until(lambda: connections_at(stand.gateway.http_address.port) == 1)


async def in_the_queue(stand: Stand, client: Wire) -> None:
    await stand.become_busy()
    client.post()
    await until(lambda: len(stand.gateway.core.waiting) == 1)


async def before_the_head(stand: Stand, client: Wire) -> None:
    stand.engine.plays(hang)
    client.post()
    await stand.engine.arrived.reaches(1)


async def before_the_first_token(stand: Stand, client: Wire) -> None:
    stand.engine.plays(stream_until(asyncio.Event(), (ROLE,)))
    client.post()
    await stand.engine.arrived.reaches(1)


async def in_the_stream(stand: Stand, client: Wire) -> None:
    stand.engine.plays(stream_until(asyncio.Event(), BEGUN))
    client.post()
    await client.reader.readuntil(b'"x"')


async def in_a_whole_answer(stand: Stand, client: Wire) -> None:
    stand.engine.plays(half_of_a_large_answer)
    client.post(body=CHAT_BODY.replace(b"true", b"false"))
    await client.reader.readuntil(b"y" * 1000)


async def after_the_answer(stand: Stand, client: Wire) -> None:
    client.post()
    await client.reader.readuntil(DONE)


async def half_of_a_large_answer(exchange: Exchange) -> None:
    await exchange.head(200, JSON_HEADERS)
    await exchange.send(b'{"choices": [{"text": "' + b"y" * (4 << 20))
    await asyncio.Event().wait()


async def closing(_: Stand, client: Wire) -> None:
    client.writer.close()


async def resetting(_: Stand, client: Wire) -> None:
    client.reset()


async def half_closing(_: Stand, client: Wire) -> None:
    """Close the sending side. The gateway takes such a client to have left: almost none would read on."""
    client.writer.write_eof()
    await client.until_closed()


Act = Callable[[Stand, Wire], Awaitable[None]]
LEAVING = pytest.mark.parametrize("leave", [closing, resetting, half_closing])
DURING_WORK: tuple[Act, ...] = (before_the_head, before_the_first_token, in_the_stream, in_a_whole_answer)


class TestLeaving:
    """Leaving at each stage of a request's life, in each way."""

    @LEAVING
    @pytest.mark.parametrize("stage", [in_the_headers, in_the_body, after_the_answer])
    async def test_while_nothing_of_it_runs(self, stands: Stands, stage: Act, leave: Act) -> None:
        async with stands() as stand, wire(stand.gateway) as client:
            await stage(stand, client)
            await leave(stand, client)
        assert stand.aborted == 0

    @LEAVING
    @pytest.mark.parametrize("across", [False, True])
    async def test_while_it_waits(self, stands: Stands, across: bool, leave: Act) -> None:
        async with stands(across=across) as stand, wire(stand.gateway) as client:
            await in_the_queue(stand, client)
            await leave(stand, client)
            await until(lambda: abandoned(stand, 0) == 1)
            assert stand.arrived == 0

    @LEAVING
    @pytest.mark.parametrize("across", [False, True])
    @pytest.mark.parametrize("stage", DURING_WORK)
    async def test_while_an_engine_works_for_it(self, stands: Stands, across: bool, stage: Act, leave: Act) -> None:
        async with stands(across=across) as stand, wire(stand.gateway) as client:
            await stage(stand, client)
            await leave(stand, client)
            await stand.engine.aborted.reaches(1)
            await until(lambda: all(abandoned(stand, number) == 1 for number in range(len(stand.gateways))))
            assert (stand.arrived, stand.aborted) == (1, 1)
            assert counted(stand.gateways[-1], "attempts_total", target="replica", result="cancelled") == 1

    @LEAVING
    @pytest.mark.parametrize("across", [False, True])
    async def test_while_its_leg_is_being_opened(self, stands: Stands, across: bool, leave: Act) -> None:
        async with stands(across=across) as stand, wire(stand.gateway) as client:
            await without_idle_connections(stand)
            async with stand.engine.accepting_nobody():
                client.post()
                await until(lambda: next(iter(stand.gateways[-1].core.replicas)).in_flight == 1)
                await leave(stand, client)
                await until(lambda: abandoned(stand, 0) == 1)
            assert stand.arrived == 0


def abandoned(stand: Stand, number: int) -> float:
    name = "forwards_ended_total" if number else "requests_total"
    return counted(stand.gateways[number], name, model="llama", outcome="abandoned")


async def without_idle_connections(stand: Stand) -> None:
    """Use up the gateway's idle connections: the engine closes each after its answer, and no more are kept than were
    ever used at once.
    """
    stand.engine.plays(stream_and_close)
    for _ in range(REQUESTS_MAX):
        await stand.is_served(None)
    stand.engine.arrived = Tally()


async def stream_and_close(exchange: Exchange) -> None:
    await exchange.head(200, {**SSE_HEADERS, "connection": "close"})
    await exchange.send(GOOD)


# Bodies and fields


def chat(**fields: object) -> bytes:
    return json.dumps({"model": "llama", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()


ABSURD_LIMITS = [0, -1, 2**31, 2**63, 2**64, 10**400, -(10**30), "17", None]
NO_LIMITS = [1.5, 1e308, "many", True]
NO_JSON = [
    b"",
    b"{",
    b"nonsense",
    b"\x00\x00\x00",
    CHAT_BODY[:-1],
    CHAT_BODY + b"}",
    CHAT_BODY * 2,
    b"\xff\xfe" + CHAT_BODY,
    b'{"model": "ll\xc3\x28ma", "messages": []}',
    b'{"\xed\xa0\x80": 1, "model": "llama"',
    CHAT_BODY.decode().encode("utf-16"),
    b'{"model": "llama", "messages": ' + b"[" * 100_000,
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    b'{"a":' * (2 << 20),
    b'{"model": "llama", "messages": [{"role": "user", "content": "' + b"x" * (10 << 20),
]
WRONG_TYPES = [
    b"null",
    b"17",
    b'"text"',
    b"[]",
    b"{}",
    b"[" * (10 << 20),
    chat(stream=[True]),
    chat(model=None),
    chat(model=17),
    chat(model=["llama"]),
    chat(model=""),
    chat(model="x" * 10_000),
    chat(model="llama\x00"),
    chat(stream="perhaps"),
    chat(stream={}),
    *(chat(max_tokens=each) for each in NO_LIMITS),
    chat(max_tokens={}),
    chat(max_tokens=[1]),
    chat(cache_salt=17),
]


class TestBodies:
    @pytest.mark.parametrize(("bodies", "code"), [(NO_JSON, "invalid_json"), (WRONG_TYPES, "invalid_field")])
    async def test_what_cannot_be_read_is_refused_and_the_connection_goes_on(
        self, stands: Stands, bodies: list[bytes], code: str
    ) -> None:
        async with stands() as stand, wire(stand.gateway) as client:
            for body in bodies:
                client.post(body=body)
                assert await client.refusal() == (400, code), body[:100]
            assert stand.arrived == 0
            client.post()
            assert (await client.reader.readuntil(DONE)).startswith(b"HTTP/1.1 200")

    @pytest.mark.parametrize("across", [False, True])
    async def test_absurd_limits_upset_nobody_on_their_way_to_the_engine(self, stands: Stands, across: bool) -> None:
        """Refusing them is left to the engine, whose error messages the client knows."""
        async with stands(across=across) as stand, wire(stand.gateway) as client:
            for limit in ABSURD_LIMITS:
                for name in ("max_tokens", "max_completion_tokens"):
                    body = chat(stream=True, **{name: limit})
                    client.post(body=body)
                    assert await unchunked(client) == GOOD
                    assert stand.engine.received[-1].body == body

    @pytest.mark.parametrize("across", [False, True])
    async def test_text_that_is_no_utf8_is_the_engine_s_to_refuse(self, stands: Stands, across: bool) -> None:
        """Gateways do not decode the text, and cannot fail on it."""
        body = CHAT_BODY.replace(b"hi", b"\xc3\x28 \xed\xa0\x80")
        refused = b'{"error":{"message":"invalid UTF-8","type":"BadRequestError","param":null,"code":400}}'
        async with stands(across=across) as stand, wire(stand.gateway) as client:
            stand.engine.plays(answer(400, refused))
            client.post(body=body)
            assert (await client.answer())[::2] == (400, refused)
            assert stand.engine.received[0].body == body

    @pytest.mark.parametrize("across", [False, True])
    async def test_ten_megabytes_arrive_whole(self, stands: Stands, across: bool) -> None:
        body = chat(stream=True, pad="x" * (10 << 20))
        async with stands(across=across) as stand, wire(stand.gateway) as client:
            client.post(body=body)
            await client.reader.readuntil(DONE)
            assert stand.engine.received[0].body == body
            stand.engine.received.clear()

    @pytest.mark.parametrize("length", [BODY_BYTES_MAX + 1, 2**40, 2**63, 10**30])
    async def test_a_body_that_is_announced_too_large_is_not_waited_for(self, stands: Stands, length: int) -> None:
        async with stands() as stand, wire(stand.gateway) as client:
            client.send(f"POST {CHAT_PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n")
            assert await client.refusal() in {(413, "body_too_large"), (400, "invalid_request")}

    async def test_a_body_that_drips_is_given_up(self, stands: Stands) -> None:
        async with stands(change=with_limits(client_stall_ns=500 * MS)) as stand, wire(stand.gateway) as client:
            client.send(posted(body=CHAT_BODY + b" " * 10_000)[:-10_000])
            async with asyncio.TaskGroup() as tasks:
                dripping = tasks.create_task(drip(client))
                assert await client.refusal() == (408, "body_timeout")
                dripping.cancel()
            assert stand.arrived == 0


async def drip(client: Wire) -> None:
    while True:
        client.send(b" ")
        await asyncio.sleep(0.01)


# Ids


class TestIds:
    async def test_many_of_one_id_at_once_are_many_requests(self, stands: Stands) -> None:
        go_on = asyncio.Event()
        async with stands() as stand, AsyncExitStack() as stack:
            stand.engine.plays(stream_until(go_on, BEGUN, (STOP, DONE)))
            clients = [await stack.enter_async_context(wire(stand.gateway)) for _ in range(REQUESTS_MAX)]
            for client in clients:
                client.post("x-request-id: same")
            heads = [await client.head() for client in clients]
            ids = [headers["x-request-id"] for _, headers in heads]
            assert (len(set(ids)), ids.count("same")) == (REQUESTS_MAX, 1)
            go_on.set()
            for client in clients:
                assert (await client.reader.readuntil(DONE)).startswith(b"data: ") or True

    async def test_an_id_is_free_again_as_soon_as_its_client_has_left(self, stands: Stands) -> None:
        async with stands() as stand:
            stand.engine.plays(stream_until(asyncio.Event(), BEGUN))
            for number in range(3):
                async with wire(stand.gateway) as client:
                    client.post("x-request-id: same")
                    assert (await client.head())[1]["x-request-id"] == "same"
                    client.reset()
                await stand.engine.aborted.reaches(number + 1)
                await until(lambda: stand.gateway.driver.open_requests == 0)

    async def test_one_that_runs_in_the_other_region_too(self, stands: Stands) -> None:
        """Clients chose the same id in both regions, and neither may lose its answer for that."""
        go_on = asyncio.Event()
        async with stands(across=True) as stand, wire(stand.gateways[1]) as there, wire(stand.gateway) as here:
            stand.engine.plays(stream_until(go_on, BEGUN, (STOP, DONE)))
            there.post("x-request-id: same")
            await stand.engine.arrived.reaches(1)
            here.post("x-request-id: same")
            await until(lambda: stand.gateway.driver.open_requests == 1)
            await until(lambda: counted(stand.gateway, "forwards_refused_total", peer="eu-1", reason="duplicate") > 0)
            go_on.set()
            for client in (there, here):
                assert b"".join((*BEGUN, STOP)) in await unchunked(client)


# Many requests on one connection


class TestPipelining:
    async def test_requests_sent_at_once_are_answered_in_their_order(self, stands: Stands) -> None:
        async with stands() as stand, wire(stand.gateway) as client:
            names = [f"r{number}" for number in range(20)]
            client.send(b"".join(posted(f"x-request-id: {name}") for name in names))
            for name in names:
                assert (await client.head())[1]["x-request-id"] == name
                await client.reader.readuntil(DONE)
                await client.reader.readuntil(b"0\r\n\r\n")

    async def test_a_client_that_leaves_takes_all_of_them_along(self, stands: Stands) -> None:
        async with stands() as stand, wire(stand.gateway) as client:
            stand.engine.plays(stream_until(asyncio.Event(), BEGUN))
            client.send(posted() * 20)
            await client.reader.readuntil(b'"x"')
            client.reset()
            await stand.engine.aborted.reaches(1)
            await stand.comes_to_rest()
            assert stand.arrived == 1, "what nobody waits for was begun"

    @pytest.mark.parametrize("ahead", [posted() * 200, posted(body=b" " * (4 << 20) + CHAT_BODY)])
    async def test_one_that_is_too_far_ahead_to_be_seen_leaving_is_cut(self, stands: Stands, ahead: bytes) -> None:
        """Reading ahead is bounded; beyond the bound a client could leave unnoticed while an engine works for it."""
        async with stands() as stand, wire(stand.gateway) as client:
            stand.engine.plays(stream_until(asyncio.Event(), BEGUN))
            client.post()
            await client.reader.readuntil(b'"x"')
            client.send(ahead)
            await client.until_closed()
            await stand.engine.aborted.reaches(1)
            assert stand.arrived == 1

    async def test_answers_that_nobody_reads_do_not_pile_up(self, stands: Stands) -> None:
        async with stands(change=with_limits(client_stall_ns=500 * MS)) as stand, wire(stand.gateway, 1) as client:
            before = stand.books().bytes
            with suppress(ConnectionError):
                for _ in range(200):
                    client.send(b"GET /openapi.yaml HTTP/1.1\r\nhost: x\r\n\r\n" * 20)
                    await client.writer.drain()
                    await asyncio.sleep(0.005)
            assert stand.books().bytes - before < SOCKET_BUFFERS_BYTES
            await until(lambda: connections_at(stand.gateway.http_address.port) == 0)


SOCKET_BUFFERS_BYTES = 16 << 20
"""More than the sockets and buffers of one connection hold."""


async def unchunked(client: Wire) -> bytes:
    """Body of one streamed answer, without its chunk framing."""
    head = await client.reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head.split(b"\r\n")[0], head
    body = bytearray()
    while size := int(await client.reader.readuntil(b"\r\n"), 16):
        body += (await client.reader.readexactly(size + 2))[:-2]
    await client.reader.readexactly(2)
    return bytes(body)


# Malformed HTTP


HEAD = f"POST {CHAT_PATH} HTTP/1.1\r\nhost: x\r\n".encode()
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
MALFORMED = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": b"GET /v1/models\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "zeros": b"\x00" * 100 + b"\r\n\r\n",
    "a version": b"GET /v1/models HTTP/9.9\r\nhost: x\r\n\r\n",
    "a zero in a header": HEAD + b"x-zero: a\x00b\r\n\r\n",
    "a space before the colon": HEAD + b"content-length : 5\r\n\r\nhello",
    "a header without a colon": HEAD + b"nothing\r\n\r\n",
    "a length that is none": HEAD + b"content-length: ten\r\n\r\n",
    "a negative length": HEAD + b"content-length: -5\r\n\r\n",
    "two lengths": HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
    "a length and chunks": HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a coding that is not known": HEAD + b"transfer-encoding: gzip, nonsense\r\n\r\n",
    "a chunk's size that is none": CHUNKED + b"zz\r\nhello\r\n0\r\n\r\n",
    "a chunk's size that overflows": CHUNKED + b"f" * 40 + b"\r\nhello\r\n",
    "a chunk longer than it says": CHUNKED + b"2\r\nhello\r\n0\r\n\r\n",
}


class TestMalformed:
    @pytest.mark.parametrize("sent", MALFORMED.values(), ids=MALFORMED)
    async def test_it_is_refused_or_cut_and_reaches_no_engine(self, stands: Stands, sent: bytes) -> None:
        async with stands() as stand, wire(stand.gateway) as client:
            client.send(sent)
            client.writer.write_eof()
            received = await client.until_closed()
            assert received[:12] in (b"", b"HTTP/1.1 400", b"HTTP/1.0 400", b"HTTP/1.1 505"), received[:200]
            if received:
                assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"]
            assert stand.arrived == 0

    async def test_an_upgrade_is_not_taken(self, stands: Stands) -> None:
        async with stands() as stand, wire(stand.gateway) as client:
            client.post("connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AAMAAABk")
            assert b" 101 " not in await client.reader.readuntil(b"\r\n")
            client.reset()

    async def test_a_client_that_asks_before_it_sends_is_told_to(self, stands: Stands) -> None:
        async with stands() as stand, wire(stand.gateway) as client:
            whole = posted("expect: 100-continue")
            head, _, body = whole.partition(b"\r\n\r\n")
            client.send(head + b"\r\n\r\n")
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(body)
            assert await unchunked(client) == GOOD


# Slow readers


class TestReading:
    @pytest.mark.parametrize("across", [False, True])
    async def test_a_client_that_never_reads_a_stream_holds_its_engine_back_and_is_given_up(
        self, stands: Stands, across: bool
    ) -> None:
        limits = with_limits(client_stall_ns=500 * MS)
        async with stands(across=across, change=limits) as stand, wire(stand.gateway, 1) as client:
            poured = await self.pour_at(stand, client)
            assert poured() < SOCKET_BUFFERS_BYTES * len(stand.gateways)
            assert abandoned(stand, 0) == 1

    async def test_a_client_that_sips_has_until_its_deadline(self, stands: Stands) -> None:
        limits = with_limits(request_deadline_ns=1500 * MS)
        async with stands(change=limits) as stand, wire(stand.gateway, 1) as client, asyncio.TaskGroup() as tasks:
            sipping = tasks.create_task(sip(client))
            poured = await self.pour_at(stand, client)
            assert poured() < SOCKET_BUFFERS_BYTES
            sipping.cancel()
            client.reset()

    async def pour_at(self, stand: Stand, client: Wire) -> Callable[[], int]:
        """Play an endless answer until the engine sees it aborted; return the count of bytes taken from the engine."""
        poured = 0
        piece = token("x" * 100_000)

        async def pour(exchange: Exchange) -> None:
            nonlocal poured
            await exchange.head()
            await exchange.send(ROLE)
            while True:
                await exchange.send(piece)
                poured += len(piece)

        stand.engine.plays(pour)
        before = stand.books().bytes
        client.post()
        await stand.engine.aborted.reaches(1)
        assert stand.books().bytes - before < SOCKET_BUFFERS_BYTES * len(stand.gateways)
        return lambda: poured


async def sip(client: Wire) -> None:
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            await client.reader.readexactly(100)
            await asyncio.sleep(0.01)
