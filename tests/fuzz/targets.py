"""Readers of bytes from strangers, each as a function of bytes: it returns, or there is a finding.

A target catches only the faults that its reader promises. Seeds are the hostile corpora, and files under
`tests/fuzz/seeds`, where each finding is kept.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import httptools
from google.protobuf.message import DecodeError, Message

from gateway.config.reading import read_region_file
from gateway.core.vocabulary import GatewayId, RequestId, TenantName
from gateway.door.errors import ClientFault
from gateway.door.parse import Caller, choose_request_id, engine_headers, read_caller, read_request
from gateway.door.settings import HttpSettings
from gateway.door.shapes import ErrorShape, refusal_in_shape
from gateway.engines.answers import read_error
from gateway.http1.client import (
    ClientConnection,
    ClientExchange,
    ConnectionPool,
    Headers,
    HttpOrigin,
    request_head,
)
from gateway.http1.errors import EngineGone
from gateway.http1.server import Exchange, HttpFault, HttpServer, ServerLimits
from gateway.peers import codec
from gateway.request.answers import first_id_of, inspect_answer
from gateway.request.engine_api import POSTED_PATHS
from gateway.request.event_scanner import EventScanner
from mesh.control.codec import read_from_controller, read_from_gateway
from mesh.faults import ConfigError
from mesh.wire import WireError
from protos.mesh.v1 import control_pb2
from protos.mesh.v1 import peer_pb2 as pb
from tests.fuzz.dns_packets import DNS_WORDS, dns_packets, read_dns_packet
from tests.fuzz.handoffs import LEG_WORDS, PREFILL_WORDS, legs, prefills, read_prefill, write_legs
from tests.fuzz.traces import TRACE_WORDS, read_trace, traces
from tests.hostile.engine_answers import ENGINE_CASES
from tests.hostile.http_requests import HTTP_CASES
from tests.hostile.json_bodies import JSON_CASES
from tests.hostile.peers import ANSWER_CASES, BEAT_CASES, CALL_CASES, beat, forward
from tests.support.core import US
from tests.support.lines import Line
from tests.support.region_files import PEER, PROTECTED, SMALLEST

ROOT = Path(__file__).parents[2]
SEEDS = Path(__file__).parent / "seeds"
_SEED_BYTES_MAX = 1 << 16
_SETTINGS = HttpSettings(GatewayId("us-1"), US, trust_tenant_header=True)
_CALLER = Caller(RequestId("r-1"), TenantName("default"), ("", ""))
_ORIGIN = HttpOrigin("engine", 80, None)
_EVENT_BYTES_MAX = 4096
_LIMITS = ServerLimits(
    connections_max=10,
    headers_bytes_max=64 << 10,
    header_line_bytes_max=16 << 10,
    header_count_max=128,
    headers_s=10.0,
    idle_s=75.0,
    stall_s=60.0,
    silence_s=2.0,
)


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    run: Callable[[bytes], None]
    corpus: Iterable[bytes]
    words: tuple[bytes, ...]
    """Byte sequences with a meaning to the reader, which mutations insert anywhere."""

    def seeds(self) -> Iterator[bytes]:
        yield from (seed for seed in self.corpus if len(seed) <= _SEED_BYTES_MAX)
        yield from (path.read_bytes() for path in sorted((SEEDS / self.name).iterdir()))


# Heads


class _Heads:
    """Handler that reads each request's headers, and answers it."""

    def __init__(self) -> None:
        self.answers = 0
        self.refusals = 0

    def serve(self, exchange: Exchange) -> None:
        request_id = choose_request_id(exchange.headers)
        with suppress(ClientFault):
            read_caller(exchange.headers, request_id, _SETTINGS)
            headers = engine_headers(exchange.headers, request_id)
            sent = request_head("POST", _ORIGIN, "/v1/chat/completions", headers, 0)
            assert _names_in(sent) == [b"host", *(name.encode() for name, _ in headers), b"content-length"]
        self.answers += 1
        exchange.respond(200, {}, b"")

    def refuse(self, fault: HttpFault) -> bytes:
        assert fault in HttpFault
        self.refusals += 1
        return b"refused"


def read_http_head(data: bytes) -> None:
    """Serve what a client sends, in two pieces, and write the heads for the engine: the engine must see the intended
    headers and no others. The client gets its answers, and at most one refusal behind them.
    """
    asyncio.run(_serve(data))


async def _serve(data: bytes) -> None:
    heads, line = _Heads(), Line()
    server = HttpServer(heads, _LIMITS)
    line.connect(server())
    line.say(data[: len(data) // 2], data[len(data) // 2 :])
    assert line.sent.count(b"HTTP/1.1 ") == heads.answers
    assert heads.refusals <= 1
    assert line.sent.endswith(b"refused") is (heads.refusals == 1)
    line.lose()
    server.close(at_once=True)


def _names_in(head: bytes) -> list[bytes]:
    names: list[bytes] = []

    class Seen:
        def on_header(self, name: bytes, value: bytes) -> None:
            names.append(name)

    httptools.HttpRequestParser(Seen()).feed_data(head)
    return names


class _LinePool(ConnectionPool):
    """Pool whose only connection is a line."""

    def __init__(self) -> None:
        super().__init__(connect_s=1.0, idle_s=1.0)
        self.line = Line(peername=("192.0.2.7", 80))

    async def connect(self, origin: HttpOrigin) -> ClientConnection:
        del origin
        connection = ClientConnection(self.on_turn)
        self.line.connect(cast(asyncio.Protocol, connection))
        return connection


class _Taker:
    """Receiver of an answer that checks the order of what it is told."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.lasts = 0

    def on_head(self, exchange: ClientExchange, status: int, headers: Headers, peer: str) -> None:
        assert self.status is None
        assert not self.lasts
        assert len(headers) <= 256
        assert peer
        del exchange
        self.status = status

    def on_data(self, data: bytes) -> None:
        assert data
        assert self.status is not None
        assert not self.lasts

    def on_end(self) -> None:
        assert self.status is not None
        self.lasts += 1

    def on_broken(self, error: Exception) -> None:
        assert isinstance(error, EngineGone), error
        self.lasts += 1


def read_engine_head(data: bytes) -> None:
    """Read what an engine sends, in two pieces: the result is an answer or a fault of the engine, and one of them."""
    asyncio.run(_ask(data))


async def _ask(data: bytes) -> None:
    pool, taker = _LinePool(), _Taker()
    pool.request("POST", _ORIGIN, "/", (), b"", taker=taker)
    while not pool.line.sent:  # noqa: ASYNC110 - the connection is made within a few turns
        await asyncio.sleep(0)
    pool.line.say(data[: len(data) // 2], data[len(data) // 2 :])
    pool.line.lose()
    assert taker.lasts == 1
    pool.close()


# Streams and answers


def read_stream(data: bytes) -> None:
    """Check that a stream passes unchanged, in pieces of any size, up to the byte at which it is at fault."""
    for size in (len(data) or 1, 1 + sum(data[:8]) % 64):
        scanner = EventScanner(event_bytes_max=_EVENT_BYTES_MAX)
        released = bytearray()
        for start in range(0, len(data), size):
            released += scanner.feed(data[start : start + size])
            if scanner.fault is not None:
                break
        else:
            released += scanner.close()
        assert data.startswith(released)
        assert scanner.fault is not None or released == data, "bytes are lost"
        assert scanner.is_finished in (True, False)
        _check_counts(scanner.usage)


def read_answer(data: bytes) -> None:
    """Check that a whole answer, or an error of any shape, becomes a body that a client can read."""
    _check_counts(inspect_answer(data).usage)
    first_id_of(data)
    for status in (400, 429, 503):
        error = read_error(status, data, is_pinned=True)
        for shape in ErrorShape:
            assert refusal_in_shape(error.body, error.status, shape, RequestId("r-1")).strip()


def _check_counts(usage: object) -> None:
    for name in ("prompt_tokens", "output_tokens", "cached_tokens"):
        count = getattr(usage, name, None)
        assert count is None or (type(count) is int and count >= 0)


def read_request_body(data: bytes) -> None:
    for path in POSTED_PATHS:
        with suppress(ClientFault):
            profile = read_request(path, data, _CALLER, _SETTINGS).profile
            assert profile.model
            assert profile.model.isprintable()


# Peers


def read_peer_messages(data: bytes) -> None:
    for kind, read in _READERS:
        try:
            message = kind.FromString(data)
        except DecodeError:
            continue
        with suppress(WireError):
            read(message)


def _read_answer_frame(frame: pb.AnswerFrame) -> None:
    reads: tuple[tuple[Literal["refused", "head", "ended"], Callable[[Any], object]], ...]
    reads = (("refused", codec.read_refused), ("head", codec.read_head), ("ended", codec.read_ended))
    for word, read in reads:
        if frame.HasField(word):
            with suppress(WireError):
                read(getattr(frame, word))


def _read_forward(message: pb.ForwardRequest) -> None:
    arrived = codec.read_forward(message, now_ns=0)
    assert arrived.event.stamp.tenant == arrived.event.profile.tenant
    assert all("\n" not in value and "\r" not in value for _, value in arrived.request.headers)


_READERS: tuple[tuple[type[Message], Callable[[Any], object]], ...] = (
    (pb.ForwardRequest, _read_forward),
    (pb.AnswerFrame, _read_answer_frame),
    (pb.SubscribeRequest, codec.read_subscribe_request),
    (pb.SubscribeResponse, codec.read_load),
    (pb.ExplainRequest, codec.read_explain_request),
    (pb.ExplainResponse, codec.read_explained),
    (pb.OwnershipRequest, codec.read_ownership_request),
    (pb.OwnershipResponse, codec.read_ownership),
    (control_pb2.AttachRequest, read_from_gateway),
    (control_pb2.AttachResponse, read_from_controller),
)


def _peer_messages() -> Iterator[bytes]:
    for call in CALL_CASES:
        yield call.changes if isinstance(call.changes, bytes) else forward(call.changes).SerializeToString()
    for answer in ANSWER_CASES:
        for message in answer.messages:
            yield message if isinstance(message, bytes) else message.SerializeToString()
    for each in BEAT_CASES:
        yield each.changes if isinstance(each.changes, bytes) else beat(1, each.changes).SerializeToString()


# Region files


def read_region(data: bytes) -> None:
    """Check that an unusable region file is refused with line and key."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "region.yaml"
        path.write_bytes(data)
        try:
            read_region_file(path, environ={}).as_config()
        except ConfigError as error:
            told = str(error)
        else:
            return
    assert "region.yaml" in told, "a fault that does not say where"


def _region_files() -> Iterator[bytes]:
    for path in sorted((ROOT / "docs/examples").glob("*.yaml")):
        yield path.read_bytes()
    for text in (SMALLEST, SMALLEST + PEER, SMALLEST + PROTECTED):
        yield text.encode()


TARGETS = (
    Target(
        "http_heads",
        read_http_head,
        [case.raw for case in HTTP_CASES],
        (
            b"\r\n",
            b"\n",
            b"\r",
            b"\0",
            b": ",
            b"user-agent: ",
            b"x-request-id: ",
            b"\xff",
            b"HTTP/1.1",
            b"transfer-encoding: chunked",
        ),
    ),
    Target(
        "engine_heads",
        read_engine_head,
        [b"".join(case.pieces) for case in ENGINE_CASES],
        (
            b"\r\n",
            b"\n",
            b"HTTP/1.1 200 OK\r\n",
            b"content-length: ",
            b"transfer-encoding: chunked\r\n",
            b"0\r\n\r\n",
            b"\xff",
        ),
    ),
    Target(
        "streams",
        read_stream,
        [b"".join(case.pieces[1:]) for case in ENGINE_CASES if b"event-stream" in b"".join(case.pieces)],
        (
            b"data: ",
            b"\n\n",
            b"\r\n\r\n",
            b"\n",
            b"\r",
            b"event: error",
            b"[DONE]",
            b'"error"',
            b'"usage"',
            b'{"choices":',
            b'"abort"',
            b'"message_stop"',
            b"\xff",
            b"{}",
            b"[]",
            b"null",
            b"1e999",
        ),
    ),
    Target(
        "answers",
        read_answer,
        [case.pieces[0].partition(b"\r\n\r\n")[2] for case in ENGINE_CASES if case.pieces],
        (
            b'"error"',
            b'"usage"',
            b'"choices"',
            b'"finish_reason"',
            b'"code"',
            b'"object"',
            b'"response"',
            b'"type"',
            b"[",
            b"]",
            b"{",
            b"}",
            b"null",
            b"1e999",
            b"9" * 400,
            b'"',
            b"\xff",
            b"\\ud83d",
        ),
    ),
    Target(
        "bodies",
        read_request_body,
        [case.body for case in JSON_CASES],
        (
            b'"model"',
            b'"stream"',
            b'"messages"',
            b'"previous_response_id"',
            b'"vllm_xargs"',
            b'"system"',
            b"x-anthropic-billing-header",
            b"[",
            b"]",
            b"{",
            b"}",
            b"null",
            b"true",
            b"9" * 400,
            b"\xff",
            b"\\ud83d",
            b"\\u0000",
        ),
    ),
    Target(
        "peer_messages",
        read_peer_messages,
        [*_peer_messages()],
        (b"\xff" * 9, b"\x0a\x00", b"\xff", b"\0", b"\n", b"us-1"),
    ),
    Target(
        "region_files",
        read_region,
        [*_region_files()],
        (
            b": ",
            b"- ",
            b"\n",
            b"  ",
            b"&a ",
            b"*a",
            b"!!int ",
            b"{",
            b"}",
            b"[",
            b"]",
            b"'",
            b'"',
            b"\t",
            b"\0",
            b"\xff",
            b"1s",
            b"9" * 400,
            b"-1",
            b"~",
            b"true",
            b"0x10",
            b".inf",
        ),
    ),
    Target("dns_packets", read_dns_packet, [*dns_packets()], DNS_WORDS),
    Target("legs", write_legs, [*legs()], LEG_WORDS),
    Target("prefills", read_prefill, [*prefills()], PREFILL_WORDS),
    Target("traces", read_trace, [*traces()], TRACE_WORDS),
)
