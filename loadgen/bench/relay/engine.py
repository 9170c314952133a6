"""The bench's engines: several ports of one process that answer as vLLM would, at a pace that the bench sets.

`python -m loadgen.bench.relay.engine COUNT` prints its ports as a JSON list. It must be cheap, since it shares a core
with the client and a relay must never wait for it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from dataclasses import dataclass
from typing import cast

import click
import uvloop

from loadgen.bench.relay import wire
from loadgen.engine.exposition import CONTENT_TYPE, Exposition, RequestMetrics
from loadgen.engine.model import EngineModel
from loadgen.engine.presets import LLAMA_31_8B_L4

PACE_PATH = b"/pace"
"""Path that takes a POST of the pause between two tokens, in microseconds, before a measurement."""
_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"
_BACKLOG = 4096


@dataclass(slots=True)
class Pages:
    """Pages that every engine serves, and the pause between tokens."""

    metrics: bytes
    gap_s: float = 0.0
    answer: bytes = wire.page(wire.ANSWER_BODY)
    models: bytes = wire.page(
        b'{"object":"list","data":[{"id":"llama","object":"model","created":0,"owned_by":"vllm"}]}'
    )
    health: bytes = wire.page(b"")
    missing: bytes = wire.page(b'{"detail":"Not Found"}', status=b"404 Not Found")

    def get(self, path: bytes) -> bytes:
        match path:
            case b"/metrics":
                return self.metrics
            case b"/health":
                return self.health
            case b"/v1/models":
                return self.models
            case _:
                return self.missing


class EngineConnection(asyncio.Protocol):
    """Reads requests one after the other and streams an answer to each."""

    def __init__(self, pages: Pages, loop: asyncio.AbstractEventLoop) -> None:
        self._pages = pages
        self._loop = loop
        self._received = b""
        self._transport: asyncio.WriteTransport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(_HEAD_END)) >= 0:
            head, body_start = self._received[:end], end + len(_HEAD_END)
            body_end = body_start + _content_length(head)
            if len(self._received) < body_end:
                return
            body = self._received[body_start:body_end]
            self._received = self._received[body_end:]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        method, path, _ = head.split(b" ", 2)
        if method == b"GET":
            self._write(self._pages.get(path))
        elif path == PACE_PATH:
            self._pages.gap_s = int(body) / 1e6
            self._write(self._pages.health)
        else:
            ask = wire.read_ask(body)
            if ask.is_stream:
                self._stream(ask)
            else:
                self._write(self._pages.answer)

    def _stream(self, ask: wire.BenchRequest) -> None:
        """Stream an answer. The role is sent with the first token, as vLLM does, whose answer begins with that
        token."""
        if ask.tokens >= wire.BURST_TOKENS:
            self._write(wire.STREAM_HEAD + wire.http_chunk(wire.ROLE_EVENT) + _TOKEN_CHUNK * ask.tokens)
            self._end(ask)
            return
        first = wire.TOKEN_EVENT if ask.tokens > 1 else wire.LAST_EVENT
        self._write(wire.STREAM_HEAD + wire.http_chunk(wire.ROLE_EVENT) + wire.http_chunk(first))
        if ask.tokens > 1:
            self._later(ask, ask.tokens - 1, self._loop.time() + self._pages.gap_s)
        else:
            self._end(ask)

    def _later(self, ask: wire.BenchRequest, left: int, when: float) -> None:
        self._timer = self._loop.call_at(when, self._token, ask, left, when)

    def _token(self, ask: wire.BenchRequest, left: int, when: float) -> None:
        if left > 1:
            self._write(_TOKEN_CHUNK_WITH_ID if ask.wants_ids else _TOKEN_CHUNK)
            self._later(ask, left - 1, when + self._pages.gap_s)
        else:
            self._write(_LAST_CHUNK)
            self._end(ask)

    def _end(self, ask: wire.BenchRequest) -> None:
        usage = wire.http_chunk(wire.USAGE_EVENT) if ask.wants_usage else b""
        self._write(usage + wire.http_chunk(wire.DONE_EVENT) + wire.http_chunk(b""))

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


_TOKEN_CHUNK = wire.http_chunk(wire.TOKEN_EVENT)
_TOKEN_CHUNK_WITH_ID = wire.http_chunk(wire.TOKEN_EVENT_WITH_ID)
_LAST_CHUNK = wire.http_chunk(wire.LAST_EVENT)


def _content_length(head: bytes) -> int:
    lower = head.lower()
    start = lower.find(_LENGTH)
    return int(lower[start + len(_LENGTH) :].split(b"\r\n", 1)[0]) if start >= 0 else 0


def metrics_page() -> bytes:
    """Metrics page of a vLLM engine that has just started and is idle."""
    text = Exposition(wire.MODEL, LLAMA_31_8B_L4, created=0.0).render(
        (EngineModel(LLAMA_31_8B_L4).load(), RequestMetrics(LLAMA_31_8B_L4.context_tokens_max))
    )
    return wire.page(text, CONTENT_TYPE.encode())


async def serve(count: int) -> None:
    """Serve until the process is stopped."""
    loop = asyncio.get_running_loop()
    pages = Pages(metrics_page())
    servers = [
        await loop.create_server(lambda: EngineConnection(pages, loop), "127.0.0.1", 0, backlog=_BACKLOG)
        for _ in range(count)
    ]
    click.echo(json.dumps([server.sockets[0].getsockname()[1] for server in servers]))
    gc.freeze()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
