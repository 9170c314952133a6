"""A small real engine on loopback whose every answer a test writes. It notices when a client leaves."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from tests.support.listening import cleaned_up

SSE_HEADERS = {"content-type": "text/event-stream; charset=utf-8"}
JSON_HEADERS = {"content-type": "application/json"}
_KNOCKS = 4
"""Connections that overfill a listening queue of length 0."""


def event(document: object) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def chat_chunk(delta: dict[str, object], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]})


ROLE = chat_chunk({"role": "assistant", "content": ""})
STOP = chat_chunk({"content": ""}, "stop")
USAGE = event({"choices": [], "usage": {"prompt_tokens": 22, "completion_tokens": 6}})
DONE = b"data: [DONE]\n\n"


def named_event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\n".encode() + event({"type": kind, **fields})


def response_created(response_id: str = "resp_1") -> bytes:
    response = {"id": response_id, "object": "response", "status": "in_progress", "error": None}
    return named_event("response.created", response=response, sequence_number=0)


RESPONSE_DELTA = named_event("response.output_text.delta", delta="Hello", sequence_number=1)
RESPONSE_COMPLETED = named_event(
    "response.completed",
    response={
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "error": None,
        "usage": {"input_tokens": 22, "output_tokens": 6},
    },
    sequence_number=2,
)
GOOD_RESPONSE_STREAM = (response_created(), RESPONSE_DELTA, RESPONSE_COMPLETED)
GOOD_RESPONSE = json.dumps({"id": "resp_1", "object": "response", "status": "completed", "error": None}).encode()
MESSAGE_START = named_event("message_start", message={"id": "m", "usage": {"input_tokens": 22, "output_tokens": 0}})
MESSAGE_PING = named_event("ping")
MESSAGE_TOKEN = named_event("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hello"})
MESSAGE_END = named_event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 6})
MESSAGE_STOP = named_event("message_stop")
GOOD_MESSAGE_STREAM = (MESSAGE_START, MESSAGE_PING, MESSAGE_TOKEN, MESSAGE_END, MESSAGE_STOP)


def token(text: str) -> bytes:
    return chat_chunk({"content": text})


def error_event(code: int, message: str = "no") -> bytes:
    return event({"error": {"message": message, "type": "Error", "param": None, "code": code}})


GOOD_STREAM = (ROLE + token("Hello"), token(" world"), STOP, USAGE, DONE)
GOOD_ANSWER = json.dumps(
    {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 22, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 16}},
    }
).encode()


class Tally:
    """A count that can be waited for."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Event()

    def add(self) -> None:
        self.count += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def reaches(self, count: int) -> None:
        while self.count < count:
            await self._changed.wait()


@dataclass(frozen=True, slots=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes
    method: str = "POST"


class Exchange:
    """One request, as a script answers it."""

    def __init__(self, request: web.Request, received: Received) -> None:
        self.received = received
        self.response: web.StreamResponse | None = None
        self._request = request

    async def head(self, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.response = web.StreamResponse(status=status, headers=headers or SSE_HEADERS)
        await self.response.prepare(self._request)

    async def send(self, data: bytes) -> None:
        assert self.response is not None, "the head comes first"
        await self.response.write(data)

    async def raw(self, data: bytes) -> None:
        """Write bytes to the connection, bypassing HTTP."""
        assert self._request.transport is not None
        self._request.transport.write(data)

    def cut(self) -> None:
        """Abort the connection, as if the process had been killed."""
        assert self._request.transport is not None
        self._request.transport.abort()


Script = Callable[[Exchange], Awaitable[None]]


def stream(*pieces: bytes) -> Script:
    """Script of an event stream that writes each piece by itself."""

    async def script(exchange: Exchange) -> None:
        await exchange.head()
        for piece in pieces:
            await exchange.send(piece)
            await asyncio.sleep(0)

    return script


def stream_until(gate: asyncio.Event, before: tuple[bytes, ...], after: tuple[bytes, ...] = ()) -> Script:
    """Script that begins a stream, waits for `gate`, and goes on."""

    async def script(exchange: Exchange) -> None:
        await stream(*before)(exchange)
        await gate.wait()
        for piece in after:
            await exchange.send(piece)

    return script


def stream_and_hang(*pieces: bytes) -> Script:
    async def script(exchange: Exchange) -> None:
        await stream(*pieces)(exchange)
        await asyncio.Event().wait()

    return script


def stream_and_cut(*pieces: bytes) -> Script:
    async def script(exchange: Exchange) -> None:
        await stream(*pieces)(exchange)
        exchange.cut()

    return script


def cut_after(gate: asyncio.Event, *pieces: bytes) -> Script:
    """Script that writes these pieces, waits for `gate`, and cuts the connection, as if the process had been killed."""

    async def script(exchange: Exchange) -> None:
        await stream(*pieces)(exchange)
        await gate.wait()
        exchange.cut()

    return script


def answer(status: int = 200, body: bytes = GOOD_ANSWER, **headers: str) -> Script:
    async def script(exchange: Exchange) -> None:
        await exchange.head(status, {**JSON_HEADERS, "content-length": str(len(body)), **headers})
        await exchange.send(body)

    return script


async def hang(_: Exchange) -> None:
    """Script that accepts the request and never answers."""
    await asyncio.Event().wait()


async def hang_up(exchange: Exchange) -> None:
    exchange.cut()


class FakeEngine:
    """Engine that plays its scripts in order, one per request, and then repeats the last one."""

    def __init__(self) -> None:
        self.url = ""
        self.port = 0
        self.scripts: deque[Script] = deque([stream(*GOOD_STREAM)])
        self.received: list[Received] = []
        self.raw_heads: list[bytes] = []
        """Header lines of each request as received."""
        self.arrived = Tally()
        self.aborted = Tally()
        """Requests whose client left before the script was finished."""
        self.connections: set[int] = set()
        """Client ports of the connections seen."""
        self.playing = 0
        """Requests whose script is not finished and whose client is still there."""
        self.running = 0
        self.waiting = 0
        self.probed = Tally()
        self.probe_script: Script | None = None
        self.models: list[str] = ["llama"]

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[FakeEngine]:
        app = web.Application()
        app.router.add_get("/health", self._probe)
        app.router.add_get("/metrics", self._probe)
        app.router.add_get("/v1/models", self._probe)
        app.router.add_route("*", "/v1/responses/{path:.*}", self._generate)
        app.router.add_post("/{path:.*}", self._generate)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            self._runner, self._listening = runner, socket.create_server(("127.0.0.1", port))
            await web.SockSite(runner, self._listening).start()
            self.port = self._listening.getsockname()[1]
            self.url = f"http://127.0.0.1:{self.port}"
            yield self
        finally:
            await cleaned_up(runner)

    @asynccontextmanager
    async def accepting_nobody(self) -> AsyncIterator[None]:
        """Accept no new connections, which remain in the TCP handshake; open connections go on."""
        asyncio.get_running_loop().remove_reader(self._listening.fileno())
        again = socket.socket(fileno=os.dup(self._listening.fileno()))
        again.listen(0)
        knocking = [_knock(self.port) for _ in range(_KNOCKS)]
        try:
            yield
        finally:
            for each in knocking:
                each.close()
            await web.SockSite(self._runner, again).start()

    def plays(self, *scripts: Script) -> None:
        self.scripts = deque(scripts)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        headers = {k.lower(): v for k, v in request.headers.items()}
        received = Received(request.path_qs, headers, await request.content.read(), request.method)
        self.received.append(received)
        self.raw_heads.append(b"".join(b"%b: %b\r\n" % pair for pair in request.raw_headers))
        assert request.transport is not None
        self.connections.add(request.transport.get_extra_info("peername")[1])
        script = self.scripts.popleft() if len(self.scripts) > 1 else self.scripts[0]
        self.arrived.add()
        self.playing += 1
        try:
            return await self._play(script, Exchange(request, received))
        finally:
            self.playing -= 1

    async def _probe(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/health":
            return web.Response()
        self.probed.add()
        if self.probe_script is not None:
            headers = {k.lower(): v for k, v in request.headers.items()}
            return await self._play(self.probe_script, Exchange(request, Received(request.path, headers, b"")))
        if request.path == "/v1/models":
            return web.json_response({"object": "list", "data": [{"id": name} for name in self.models]})
        return web.Response(text=metrics_page(self.running, self.waiting))

    async def _play(self, script: Script, exchange: Exchange) -> web.StreamResponse:
        try:
            await script(exchange)
        except (asyncio.CancelledError, ConnectionResetError):
            self.aborted.add()
            raise
        return exchange.response or web.Response(status=500)


def _knock(port: int) -> socket.socket:
    """Socket that takes a place in the queue of connections, or waits for one."""
    knocking = socket.socket()
    knocking.setblocking(False)
    knocking.connect_ex(("127.0.0.1", port))
    return knocking


def metrics_page(running: int, waiting: int) -> str:
    """Metrics page with the lines of vLLM that matter, between others that look alike."""
    labels = 'engine="0",model_name="llama"'
    return f"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{{labels}}} {running}.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{{labels}}} {waiting}.0
vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} 777.0
vllm:kv_cache_usage_perc{{{labels}}} 0.25
vllm:cache_config_info{{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="512"}} 1.0
vllm:prefix_cache_queries_created{{{labels}}} 1.7952422058784962e+09
"""
