"""Memory of requests that end in any way: the process releases it at once, and so does the allocator.

Two things can keep memory: cycles of objects, which only the garbage collector frees, and the allocator. Every way in
which a request can end is a line of a table here; a new way gets a line.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.app.memory import _CONNECTION_BYTES
from gateway.security.keys import mint
from tests.fakes.engine import (
    DONE,
    GOOD_STREAM,
    JSON_HEADERS,
    ROLE,
    SSE_HEADERS,
    STOP,
    Exchange,
    FakeEngine,
    Script,
    answer,
    error_event,
    hang,
    hang_up,
    stream,
    stream_and_cut,
    stream_and_hang,
    token,
)
from tests.fakes.engine_pages import Page, PagesEngine
from tests.support.certificates import Files, clients_leaf, new_ca, roots_of
from tests.support.core import MODEL, US
from tests.support.gateways import until
from tests.support.processes import QUICK_PEERS, QUICK_PROBES, Process, gateway_process, region_file, two_regions
from tests.support.programs import nightside
from tests.support.wire import CHAT_PATH, Wire, posted

KIB, MIB = 1 << 10, 1 << 20
BODY_BYTES = 300 * KIB
"""Large enough to arrive in pieces, and to be joined in another thread."""
GIVEN_BACK_S = 10.0
KEPT_BYTES_MAX = 30 * MIB
NO_RESUME = {"attempts_max": 1, "breaker_failures_in_row": 10**6, "breaker_window": 10**6}
KEYS: dict[str, dict[str, object]] = {
    "a": {},
    "b": {"tenant": "other"},
    "c": {"tenant": "fifth"},
    "tokens": {"tenant": "third", "tokens_per_minute": 1},
    "rate": {"requests_per_minute": 1},
    "one": {"tenant": "fourth", "concurrency": 1},
}
LIMITS = {
    "body_max": "1MiB",
    "bodies_held_max": "1536KiB",
    "body_grace": "300ms",
    "client_stall": "500ms",
    "engine_stall": "300ms",
}


class Client(Wire):
    """One connection to a gateway, with a key."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str) -> None:
        super().__init__(reader, writer)
        self.key = f"authorization: Bearer {key}"

    def asks(self, *headers: str, body: bytes, unsent: int = 0) -> None:
        """Send a request without its last `unsent` bytes."""
        request = posted(self.key, *headers, body=body)
        self.send(request[: len(request) - unsent])

    def says(self, *headers: str, body: bytes = b"", method: str = "POST", path: str = CHAT_PATH) -> None:
        """Send a request without a content length, unless `headers` have one."""
        lines = [f"{method} {path} HTTP/1.1", "host: x", self.key, *headers, "", ""]
        self.send("\r\n".join(lines).encode() + body)


@dataclass
class Held:
    """A gateway process with an engine, and connections that report the process's memory."""

    process: Process
    engine: FakeEngine
    keys: dict[str, str]
    inspected: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
    """Connections to the inspection socket of each gateway of the mesh; clients use the first gateway."""
    told_bytes: int = 0
    """Memory that `gateway check` predicts."""
    trusts: ssl.SSLContext | None = None

    @asynccontextmanager
    async def client(self, key: str = "a") -> AsyncIterator[Client]:
        host, _, port = self.process.http_url.rpartition("/")[2].partition(":")
        reader, writer = await asyncio.open_connection(
            host, int(port), limit=MIB, ssl=self.trusts, server_hostname=self.trusts and "localhost"
        )
        try:
            yield Client(reader, writer, self.keys.get(key, ""))
        finally:
            writer.transport.abort()

    async def says(self, command: str) -> list[Any]:
        """Answers of each gateway of the mesh to an inspection command."""
        answers = []
        for reader, writer in self.inspected:
            writer.write(command.encode() + b"\n")
            answers.append(json.loads(await reader.readline()))
        return answers

    async def holds(self, size: int) -> None:
        while (await self.says("held"))[0] < size:  # noqa: ASYNC110 - as `until`
            await asyncio.sleep(0.002)

    async def comes_to_rest(self) -> None:
        """Wait until no body, no request and no client is left."""
        while any(await self.says("held")) or any(await self.says("clients")):  # noqa: ASYNC110 - as `until`
            await asyncio.sleep(0.002)
        await until(lambda: not self.engine.playing)

    def resident(self, field: str) -> int:
        status = Path(f"/proc/{self.process.process.pid}/status").read_text()
        (kib,) = re.findall(rf"{field}:\s+(\d+) kB", status)
        return int(kib) * KIB


Way = Callable[[Held], Awaitable[None]]
Refusal = tuple[int, str]


def body_of(size: int = BODY_BYTES, *, streamed: bool = True) -> bytes:
    body = json.dumps({"model": MODEL, "stream": streamed, "messages": ""}).encode()
    return body[:-2] + b"x" * (size - len(body)) + body[-2:]


BODY, WHOLE = body_of(), body_of(streamed=False)
PACKED = gzip.compress(BODY)
LARGE = body_of(900 * KIB)
GZIP = "content-encoding: gzip"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


# Ways in which clients leave


def closes(client: Wire) -> None:
    client.writer.close()


def resets(client: Wire) -> None:
    client.reset()


def half_closes(client: Wire) -> None:
    client.writer.write_eof()


Leave = Callable[[Wire], None]
LEAVING: tuple[Leave, ...] = (closes, resets, half_closes)
TLS_LEAVING: tuple[Leave, ...] = (closes, resets)


def leaves_upload(leave: Leave, *headers: str, body: bytes = BODY) -> Way:
    async def way(held: Held) -> None:
        async with held.client() as client:
            client.asks(*headers, body=body, unsent=9)
            await held.holds(BODY_BYTES - 64 * KIB)
            leave(client)
            await held.comes_to_rest()

    return way


def leaves_engine(leave: Leave, script: Script, *, behind: bytes = b"", body: bytes = BODY) -> Way:
    """Leave while an engine works for the request, after these bytes of the answer."""

    async def way(held: Held) -> None:
        held.engine.plays(script)
        arrived = held.engine.arrived.count
        async with held.client() as client:
            client.asks(body=body)
            await held.engine.arrived.reaches(arrived + 1)
            if behind:
                await client.reader.readuntil(behind)
            leave(client)
            await held.comes_to_rest()

    return way


async def leaves_chunks(held: Held) -> None:
    async with held.client() as client:
        client.says("transfer-encoding: chunked", body=chunk(BODY))
        await held.holds(BODY_BYTES)


async def leaves_before_sending(held: Held) -> None:
    async with held.client() as client:
        client.says("expect: 100-continue", f"content-length: {BODY_BYTES}")
        await client.reader.readuntil(b"\r\n\r\n")


async def leaves_headers(held: Held) -> None:
    async with held.client() as client:
        client.send(f"POST {CHAT_PATH} HTTP/1.1\r\nhost: x\r\n")
        await until(lambda: not client.writer.transport.get_write_buffer_size())


async def reads_nothing(held: Held) -> None:
    async def endless(exchange: Exchange) -> None:
        await exchange.head()
        while True:
            await exchange.send(token("y" * 60_000))

    held.engine.plays(endless)
    aborted = held.engine.aborted.count
    async with held.client() as client:
        client.asks(body=BODY)
        await held.engine.aborted.reaches(aborted + 1)


# Refusals by gateways


def refused(refusal: Refusal, *headers: str, body: bytes = BODY, key: str = "a", unsent: int = 0) -> Way:
    async def way(held: Held) -> None:
        async with held.client(key) as client:
            client.asks(*headers, body=body, unsent=unsent)
            assert await client.refusal() == refusal

    return way


def turned_down(refusal: Refusal, *headers: str, body: bytes = b"", **of_request: str) -> Way:
    """Send a request that is refused for its own properties, and check the refusal."""

    async def way(held: Held) -> None:
        async with held.client() as client:
            client.says(*headers, body=body, **of_request)
            assert await client.refusal() == refusal

    return way


def beside(keys: Iterable[str], way: Way) -> Way:
    """Do this while each of these keys holds a body."""

    async def beside_them(held: Held) -> None:
        held.engine.plays(hang)
        async with AsyncExitStack() as stack:
            for count, key in enumerate(keys):
                client = await stack.enter_async_context(held.client(key))
                client.asks(body=BODY)
                await held.holds((count + 1) * BODY_BYTES)
            await way(held)

    return beside_them


# Behaviour of engines


def asks(script: Script, status: int | None, *headers: str, body: bytes = BODY) -> Way:
    """Send a request that the engine answers by a script. `status` None: either outcome, as the engine's pieces may
    arrive together or apart.
    """

    async def way(held: Held) -> None:
        held.engine.plays(script)
        async with held.client() as client:
            client.asks("connection: close", *headers, body=body)
            answered = int((await client.until_closed())[9:12])
            assert answered == status or status is None

    return way


async def speaks_ssh(exchange: Exchange) -> None:
    await exchange.raw(b"SSH-2.0-x\r\n\r\n")
    exchange.cut()


async def answers_twice(exchange: Exchange) -> None:
    once = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n{}"
    await exchange.raw(once + once)
    exchange.cut()


async def drips(exchange: Exchange) -> None:
    await exchange.head()
    while True:
        await exchange.send(BEGUN)
        await asyncio.sleep(0.01)


async def encodes(exchange: Exchange) -> None:
    await exchange.head(200, {**SSE_HEADERS, "content-encoding": "gzip"})
    await exchange.send(b"x")


def half_of(status: int) -> Script:
    async def script(exchange: Exchange) -> None:
        await exchange.head(status, {**JSON_HEADERS, "content-length": "100"})
        await exchange.send(b"{")
        exchange.cut()

    return script


async def half_of_a_large_answer(exchange: Exchange) -> None:
    await exchange.head(200, JSON_HEADERS)
    await exchange.send(b'{"choices": [{"text": "' + b"y" * (4 << 20))
    await asyncio.Event().wait()


HURRY = "x-nightside-deadline: 200ms"
ERROR = b'{"error":{"message":"no","code":500}}'
BEGUN = ROLE + token("x")
ANSWERS: dict[str, Way] = {
    "streamed": asks(stream(*GOOD_STREAM), 200),
    "in one piece": asks(answer(), 200, body=WHOLE),
    "engine says 400": asks(answer(400, ERROR), 400),
    "engine says 404": asks(answer(404, ERROR), 404),
    "engine says 429 until the deadline": asks(answer(429, ERROR), 504, HURRY),
    "engine says 500": asks(answer(500, ERROR), 502),
    "engine says 503 until the deadline": asks(answer(503, ERROR), 504, HURRY),
    "engine says nothing until the deadline": asks(hang, 504, HURRY),
    "engine's stream meets the deadline": asks(drips, None, HURRY),
    "engine says 204": asks(answer(204, b""), 502),
    "engine hangs up": asks(hang_up, 502),
    "engine speaks no HTTP": asks(speaks_ssh, 502),
    "engine answers twice": asks(answers_twice, 200, body=WHOLE),
    "engine encodes": asks(encodes, 502),
    "engine breaks off an error": asks(half_of(400), 502),
    "engine breaks off an answer": asks(half_of(200), 502, body=WHOLE),
    "engine answers nothing": asks(answer(200, b""), 502, body=WHOLE),
    "engine answers an error as 200": asks(answer(200, ERROR), 502, body=WHOLE),
    "engine's stream has no token": asks(stream(ROLE), 502),
    "engine's stream is cut before a token": asks(stream_and_cut(ROLE), 502),
    "engine's stream is cut": asks(stream_and_cut(BEGUN), None),
    "engine's stream has no end": asks(stream(BEGUN), 200),
    "engine's stream falls silent": asks(stream_and_hang(BEGUN), 200),
    "engine's stream begins with its error": asks(stream(error_event(500)), 502),
    "engine's stream begins with the client's error": asks(stream(error_event(400)), 400),
    "engine's stream turns into an error": asks(stream(BEGUN, error_event(500)), None),
}
LEFT: dict[str, Way] = {
    f"client {leave.__name__} {stage}": leaves_engine(leave, script, behind=behind, body=body)
    for leave in LEAVING
    for stage, script, behind, body in (
        ("before the head", hang, b"", BODY),
        ("before a token", stream_and_hang(ROLE), b"", BODY),
        ("in the stream", stream_and_hang(BEGUN), b'"x"', BODY),
        ("in an answer in one piece", half_of_a_large_answer, b"y" * 1000, WHOLE),
    )
}
UPLOADS: dict[str, Way] = {
    **{f"client {leave.__name__} in its body": leaves_upload(leave) for leave in LEAVING},
    **{f"client {leave.__name__} in its packed body": leaves_upload(leave, GZIP, body=PACKED) for leave in LEAVING},
    "client leaves between chunks": leaves_chunks,
    "client leaves when told to go on": leaves_before_sending,
    "client leaves in its headers": leaves_headers,
    "client reads nothing": reads_nothing,
    "slow body": refused((408, "body_timeout"), unsent=9),
    "slow packed body": refused((408, "body_timeout"), GZIP, body=PACKED, unsent=9),
    "damaged gzip": refused((400, "invalid_encoding"), GZIP, body=PACKED[:-200] + b"\xff" * 200),
    "gzip that ends early": refused((400, "invalid_encoding"), GZIP, body=PACKED[:-9]),
    "gzip and more": refused((400, "invalid_encoding"), GZIP, body=PACKED + b"more"),
    "gzip of too much": refused((413, "body_too_large"), GZIP, body=gzip.compress(b" " * 2 * MIB)),
    "too large": turned_down((413, "body_too_large"), "content-length: 99999999"),
    "too large in chunks": turned_down(
        (413, "body_too_large"), "transfer-encoding: chunked", body=chunk(b" " * 2 * MIB)
    ),
    "odd chunks": turned_down((400, "invalid_request"), "transfer-encoding: chunked", body=chunk(BODY) + b"zz\r\n\r\n"),
    "unknown encoding": refused((415, "unsupported_encoding"), "content-encoding: br"),
    "unknown expectation": refused((417, "expectation_failed"), "expect: a miracle"),
    "odd framing": turned_down(
        (400, "invalid_transfer_encoding"), "transfer-encoding: gzip, chunked", body=chunk(BODY)
    ),
    "large headers": turned_down((431, "headers_too_large"), "x: " + "y" * 100_000),
    "odd header": turned_down((400, "invalid_header"), "x: \x01"),
    "no JSON": refused((400, "invalid_json"), body=BODY[:-1]),
    "too many fields": refused((400, "invalid_field"), body=b'{"a":[' + b"{}," * 100_000 + b"{}]}"),
    "unknown model": refused((404, "model_not_found"), body=BODY.replace(MODEL.encode(), b"other")),
    "unknown key": refused((401, "invalid_api_key"), key="none"),
    "unknown path": turned_down((404, "not_found"), path="/nowhere", method="GET"),
    "wrong method": turned_down((405, "method_not_allowed"), method="PUT"),
    "no tokens left": refused((429, "token_rate_exceeded"), key="tokens"),
    "no requests left": refused((429, "request_rate_exceeded"), key="rate"),
    "too many at once": beside(["one"], refused((429, "concurrency_exceeded"), key="one")),
    "no room for what is announced": beside("aabb", refused((503, "gateway_full"), body=LARGE)),
    "no room for what is packed": beside("aabb", refused((503, "gateway_full"), GZIP, body=gzip.compress(LARGE))),
    "no room for chunks": beside(
        "aabb", turned_down((503, "gateway_full"), "transfer-encoding: chunked", body=chunk(LARGE))
    ),
    "no share left for what is packed": beside(
        "aaa", refused((429, "bodies_share_exceeded"), GZIP, body=gzip.compress(body_of(600 * KIB)))
    ),
}


async def kept_by_cycles(held: Held, ways: dict[str, Way]) -> dict[str, list[dict[str, int]]]:
    """Objects that only the garbage collector would free, by the way that left them."""
    found: dict[str, list[dict[str, int]]] = {}
    await held.says("watch")
    for name, way in ways.items():
        try:
            async with asyncio.timeout(30):
                held.engine.plays(stream(*GOOD_STREAM))
                await way(held)
                await held.comes_to_rest()
        except (AssertionError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise AssertionError(f"{name}: {error!r}") from error
        garbage = await held.says("garbage")
        if any(garbage):
            found[name] = garbage
    return found


@asynccontextmanager
async def inspected(file: Path) -> AsyncIterator[tuple[Process, tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    at = file.with_suffix(".sock")
    run = [sys.executable, "-m", "tests.support.inspected_gateway", str(file), str(at)]
    async with gateway_process(file, run=run) as process:
        reader, writer = await asyncio.open_unix_connection(at)
        try:
            yield process, (reader, writer)
        finally:
            writer.close()


@asynccontextmanager
async def holding(folder: Path, engine: FakeEngine, **sections: Any) -> AsyncIterator[Held]:
    """One gateway whose clients have keys."""
    minted = {name: mint(name) for name in KEYS}
    entries = [{"id": name, "tenant": "acme", "hash": str(minted[name][1]), **more} for name, more in KEYS.items()]
    keys = folder / "keys.yaml"
    keys.write_text(yaml.safe_dump({"version": 1, "keys": entries}))
    pushing = {"mode": "blind"}
    own = {"keys": str(keys), "attempt": NO_RESUME, "pushing": pushing, "probes": QUICK_PROBES, **sections}
    file = region_file(folder, "us-1", US, engine, **own)
    status, _, told = await nightside("gateway", "check", file)
    assert status == 0, told
    (told_mib,) = re.findall(r"memory: at most (\d+)MiB", told) or ["0"]
    async with inspected(file) as (process, inspection):
        shown = {name: made for name, (made, _) in minted.items()}
        held = Held(process, engine, shown, [inspection], int(told_mib) * MIB)
        yield held


async def warm(held: Held, *keys: str) -> None:
    """Send one request per key: one-time allocations are made, and some of the keys reach their limits."""
    for key in keys:
        async with held.client(key) as client:
            client.asks("connection: close", body=BODY)
            assert b" 200 " in await client.until_closed()
    await held.comes_to_rest()


@asynccontextmanager
async def holding_across(
    folder: Path, ports: Callable[[], int], engine: FakeEngine, **peering: object
) -> AsyncIterator[Held]:
    """Two gateways, of which the first has a busy engine and forwards everything."""
    async with FakeEngine().serving() as busy, AsyncExitStack() as stack:
        busy.waiting = 1
        sections = {"limits": LIMITS, "attempt": NO_RESUME, "peering": {**QUICK_PEERS, **peering}}
        files = two_regions(folder, ports, busy, engine, **sections)
        processes = [await stack.enter_async_context(inspected(file)) for file in files]
        yield Held(processes[0][0], engine, {}, [inspection for _, inspection in processes])


async def test_no_way_in_which_a_request_ends_leaves_a_cycle(tmp_path: Path, engine: FakeEngine) -> None:
    async with holding(tmp_path, engine, limits=LIMITS) as held:
        await warm(held, "a", "tokens", "rate")
        assert await kept_by_cycles(held, UPLOADS | ANSWERS | LEFT) == {}


async def test_no_way_in_which_a_forward_ends_leaves_a_cycle(
    tmp_path: Path, engine: FakeEngine, unused_tcp_port_factory: Callable[[], int]
) -> None:
    async with holding_across(tmp_path, unused_tcp_port_factory, engine) as held:
        await warm(held, "a")
        assert await kept_by_cycles(held, ANSWERS | LEFT) == {}


@pytest.mark.nightly
async def test_no_way_in_which_a_request_over_tls_ends_leaves_a_cycle(tmp_path: Path, engine: FakeEngine) -> None:
    authority, files = new_ca(), Files(tmp_path / "tls")
    files.put(clients_leaf(authority))
    listen: dict[str, object] = {"http": "127.0.0.1:0", "admin": "127.0.0.1:0", "peers": "127.0.0.1:0"}
    listen["tls"] = {"certificate": str(files.certificate), "key": str(files.key)}
    async with holding(tmp_path, engine, limits=LIMITS, listen=listen) as held:
        held.trusts = ssl.create_default_context(cadata=roots_of(authority).decode())
        await warm(held, "a", "tokens", "rate")
        ways = {name: way for name, way in (UPLOADS | LEFT).items() if "half_closes" not in name}
        assert await kept_by_cycles(held, ways) == {}


# Requests with two legs, at once and one after another


HANDED_OVER = (
    b'{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"H"},'
    b'"finish_reason":"length"}],"usage":{"prompt_tokens":22,"completion_tokens":1},"kv_transfer_params":'
    b'{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_engine_id":"d","remote_host":"127.0.0.1",'
    b'"remote_port":5600}}'
)
BOOTSTRAP = b'{"0":{"engine_id":"engine-of-p","worker_addr":{"0":{"0":"addr"}}}}'
TALK = json.dumps(
    {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "x" * BODY_BYTES}]}
).encode()
TALK_WHOLE = TALK.replace(b'"stream": true', b'"stream": false')
LEAVES_LEGS: dict[str, Way] = {
    f"client {leave.__name__} {stage}": leaves_engine(leave, script, behind=behind, body=TALK)
    for leave in LEAVING
    for stage, script, behind in (
        ("before the head", hang, b""),
        ("before a token", stream_and_hang(ROLE), b""),
        ("in the stream", stream_and_hang(BEGUN), b'"x"'),
    )
}


def legs_end(reader: FakeEngine) -> dict[str, Way]:
    """Ways by the end of the prefill leg and the end of the decode leg."""

    def read(script: Script, written: Script, *headers: str, body: bytes = TALK) -> Way:
        async def way(held: Held) -> None:
            reader.plays(script)
            await asks(written, None, *headers, body=body)(held)
            reader.plays(answer(body=HANDED_OVER))

        return way

    reads: dict[str, Script] = {
        "hands over": answer(body=HANDED_OVER),
        "says 500": answer(500, ERROR),
        "says 400": answer(400, ERROR),
        "hangs up": hang_up,
        "hands nothing over": answer(),
        "speaks no JSON": answer(body=b"{"),
        "says nothing": hang,
    }
    writes: dict[str, Script] = {
        "writes": stream(*GOOD_STREAM),
        "says 500": answer(500, ERROR),
        "is cut": stream_and_cut(BEGUN),
        "hangs up": hang_up,
        "begins with an error": stream(error_event(500)),
        "falls silent": stream_and_hang(BEGUN),
    }
    return {
        **{f"reader {name}": read(script, stream(*GOOD_STREAM), HURRY) for name, script in reads.items()},
        **{f"writer {name}": read(answer(body=HANDED_OVER), script) for name, script in writes.items()},
        "writer writes in one piece": read(answer(body=HANDED_OVER), stream(*GOOD_STREAM), body=TALK_WHOLE),
    }


@pytest.mark.nightly
@pytest.mark.parametrize("connector", ["nixl", "mooncake"], ids=["one after the other", "both at once"])
async def test_no_way_in_which_two_legs_of_a_request_end_leaves_a_cycle(
    tmp_path: Path, engine: FakeEngine, connector: str
) -> None:
    async with FakeEngine().serving() as reader, PagesEngine({"/query": Page(BOOTSTRAP)}).serving() as bootstrap:
        reader.plays(answer(body=HANDED_OVER))
        own: dict[str, object] = {"models": [MODEL], "pool": "chat"}
        readers = {"id": "p", "url": reader.url, "role": "prefill", **own}
        if connector == "mooncake":
            readers["bootstrap_port"] = int(bootstrap.url.split(":")[2])
        sections = {
            "replicas": [readers, {"id": "d", "url": engine.url, "role": "decode", **own}],
            "pools": [{"name": "chat", "kind": "disaggregated", "connector": connector, "decode_batch_max": 4}],
        }
        async with holding(tmp_path, engine, limits=LIMITS, **sections) as held:
            async with held.client() as client:
                client.asks("connection: close", body=TALK)
                assert b" 200 " in await client.until_closed()
            await held.comes_to_rest()
            assert await kept_by_cycles(held, legs_end(reader) | LEAVES_LEGS) == {}


def breaks_once(then: Script) -> Script:
    """Script that breaks a first attempt, and plays `then` for its continuation."""

    async def script(exchange: Exchange) -> None:
        if b"continue_final_message" in exchange.received.body:
            await then(exchange)
        else:
            await stream_and_cut(BEGUN)(exchange)

    return script


@pytest.mark.nightly
async def test_no_way_in_which_a_resumed_answer_ends_leaves_a_cycle(tmp_path: Path, engine: FakeEngine) -> None:
    ways = {
        "goes on": asks(breaks_once(stream(token("y"), STOP, DONE)), 200, body=TALK),
        "breaks again": asks(breaks_once(stream_and_cut(token("y"))), 200, body=TALK),
        "is refused": asks(breaks_once(answer(400, ERROR)), 200, body=TALK),
        "fails": asks(breaks_once(answer(500, ERROR)), 200, body=TALK),
        "hangs up": asks(breaks_once(hang_up), 200, body=TALK),
        "meets the deadline": asks(breaks_once(hang), 200, HURRY, body=TALK),
        **{
            f"client {leave.__name__}": leaves_engine(
                leave, breaks_once(stream_and_hang(token("y"))), behind=b'"y"', body=TALK
            )
            for leave in LEAVING
        },
    }
    async with FakeEngine().serving() as other:
        replicas = [{"id": name, "url": each.url, "models": [MODEL]} for name, each in (("a", engine), ("b", other))]
        attempt = {**NO_RESUME, "attempts_max": 3}
        async with holding(tmp_path, engine, limits=LIMITS, replicas=replicas, attempt=attempt) as held:

            def both(way: Way) -> Way:
                async def played(held: Held) -> None:
                    plain = engine.plays

                    def plays(*scripts: Script) -> None:
                        plain(*scripts)
                        other.plays(*scripts)

                    engine.plays = plays  # type: ignore[method-assign]
                    await way(held)

                return played

            await warm(held, "a")
            assert await kept_by_cycles(held, {name: both(way) for name, way in ways.items()}) == {}
            assert any(b"continue_final_message" in each.body for each in (*engine.received, *other.received))


# Memory returned to the system


PLENTY = {"body_max": "16MiB", "bodies_held_max": "60MiB", "connections_max": 200, "requests_max": 200}
MUCH = body_of(16 * MIB - 100 * KIB)
MUCH_PACKED = gzip.compress(MUCH)
FEW, MANY = 20, 120
SMALL: dict[str, Any] = {
    "placement": {"policy": "prefix", "prefix_index_max": "1MiB", "stored_responses_max": 100},
    "decisions": {"held_max": "1MiB"},
    "peering": {
        "forwards_max": 4,
        "forwards_held_max": "20MiB",
        "forwards_held_peer_max": "20MiB",
        "message_max": "17MiB",
    },
}


async def leaves_much(held: Held, *headers: str, body: bytes = MUCH) -> None:
    async with held.client() as client:
        client.asks(*headers, body=body, unsent=9)
        await held.holds(len(MUCH) - MIB)
    await held.comes_to_rest()


async def leaves_much_packed(held: Held) -> None:
    await leaves_much(held, GZIP, body=MUCH_PACKED)


fails_with_much = asks(answer(500, ERROR), 502, body=MUCH)
much_has_no_room = refused((503, "gateway_full"), GZIP, body=MUCH_PACKED, unsent=9, key="c")
much_has_no_share = refused((429, "bodies_share_exceeded"), GZIP, body=MUCH_PACKED, unsent=9)
much_has_no_tokens = refused((429, "token_rate_exceeded"), GZIP, body=MUCH_PACKED, key="tokens")


@dataclass(frozen=True)
class Attack:
    way: Way
    beside: tuple[str, ...]
    """Keys that hold a large body each meanwhile."""
    room: str
    """Bound on all held bodies (`bodies_held_max`)."""


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(Attack(leaves_much_packed, (), "60MiB"), id="packed body left", marks=pytest.mark.nightly),
        pytest.param(Attack(leaves_much, (), "60MiB"), id="body left"),
        pytest.param(Attack(much_has_no_room, ("a", "b", "one"), "60MiB"), id="no room", marks=pytest.mark.nightly),
        pytest.param(Attack(much_has_no_share, ("a",), "48MiB"), id="no share", marks=pytest.mark.nightly),
        pytest.param(Attack(much_has_no_tokens, (), "60MiB"), id="no tokens", marks=pytest.mark.nightly),
        pytest.param(Attack(fails_with_much, (), "60MiB"), id="engine fails"),
    ],
)
@pytest.mark.timeout(1800)
async def test_bodies_of_requests_that_end_badly_go_back_to_the_system(
    tmp_path: Path, engine: FakeEngine, attack: Attack, request: pytest.FixtureRequest
) -> None:
    """`--memory-rounds 500` repeats the volume of a real attack."""
    rounds = request.config.getoption("--memory-rounds")
    limits = {**PLENTY, "bodies_held_max": attack.room, "body_grace": "60s"}
    async with holding(tmp_path, engine, limits=limits, **SMALL) as held, AsyncExitStack() as stack:
        await warm(held, "a", "tokens")
        if attack.beside:
            engine.plays(hang)
        for count, key in enumerate(attack.beside):
            client = await stack.enter_async_context(held.client(key))
            client.asks(body=MUCH)
            await held.holds((count + 1) * len(MUCH))
        before = held.resident("VmRSS")
        for _ in range(rounds):
            await attack.way(held)
            engine.received.clear()
        after, peak = held.resident("VmRSS"), held.resident("VmHWM")
        async with asyncio.timeout(GIVEN_BACK_S):
            await until(lambda: held.resident("VmRSS") <= before + KEPT_BYTES_MAX)
        sizes = {
            "told": held.told_bytes,
            "before": before,
            "after": after,
            "peak": peak,
            "kept": held.resident("VmRSS"),
        }
        print(rounds, "rounds, MiB:", {name: size // MIB for name, size in sizes.items()})  # noqa: T201 - with -s
        assert peak <= held.told_bytes


async def test_the_peak_of_packed_bodies_does_not_grow_with_their_number(tmp_path: Path, engine: FakeEngine) -> None:
    """A body without room costs no more than its connection may hold."""
    packed = gzip.compress(body_of(4 * MIB - KIB))
    limits = {**PLENTY, "body_max": "4MiB", "bodies_held_max": "16MiB", "body_grace": "500ms"}
    async with holding(tmp_path, engine, limits=limits, **SMALL) as held:
        await warm(held, "a")
        peaks = []
        for count in FEW, MANY:
            async with AsyncExitStack() as stack:
                clients = [await stack.enter_async_context(held.client("ab"[each % 2])) for each in range(count)]
                for client in clients:
                    client.asks(GZIP, body=packed, unsent=9)
                refusals = {await client.refusal() for client in clients}
            assert {(503, "gateway_full"), (429, "bodies_share_exceeded")} & refusals
            await held.comes_to_rest()
            peaks.append(held.resident("VmHWM"))
        assert peaks[1] - peaks[0] <= (MANY - FEW) * _CONNECTION_BYTES
