"""The bench's client: connections that send prepared requests, check each answer and note when it began.

It shares a core with the engines, so it does only the necessary work. A wrong answer ends the measurement: a relay that
loses events must not be rated as fast.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle
from typing import cast

import httptools

from loadgen.bench.relay import wire
from loadgen.bench.relay.wire import Likeness, Wanted

_MARKS = {Likeness.BYTES: b"data: ", Likeness.TEXT: b" word"}
"""Bytes that stand once in the event of each token."""
_ANSWER_MAX_S = 30.0
_CONNECT_MAX_S = 10.0


class WrongAnswer(Exception):
    """A relay's answer differs from the engine's."""


class StaleConnection(WrongAnswer):
    """A relay closed a connection that had been kept alive before it answered the next request, as HTTP allows."""


@dataclass(slots=True)
class RelayTally:
    """Counters of a load."""

    answers: int = 0
    events: int = 0
    """Events, or words where a relay writes answers anew."""
    first_byte_s: list[float] = field(default_factory=list)
    """Seconds from the start of the request to the first byte of the answer's body."""
    longest_pause_s: float | None = None
    """Longest pause between two pieces of any answer; None while not measured. Setting it to 0 starts the
    measurement."""


def now_s() -> float:
    return time.perf_counter()  # noqa: TID251 - a bench


class Connection(asyncio.Protocol):
    """One keep-alive connection with one request at a time."""

    def __init__(self, tally: RelayTally) -> None:
        self.is_open = False
        self.began = asyncio.Event()
        """Set when the answer's body has begun, or when the answer has failed."""
        self._tally = tally
        self._transport: asyncio.WriteTransport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[None] | None = None
        self._wanted: Wanted | None = None
        self._mark = b""
        self._asked_s = 0.0
        self._tail = b""
        self._body_bytes = 0
        self._events = 0
        self._heard_s = 0.0
        self._is_used = False
        """True once an answer has been received whole."""
        self._is_silent = True
        """True while nothing of the present answer has arrived."""

    async def ask(self, wanted: Wanted) -> None:
        """Send the request and wait for the whole answer. Raises WrongAnswer."""
        self.send(wanted)
        assert self._answer is not None
        await self._answer

    def send(self, wanted: Wanted) -> None:
        """Send the request without waiting for the answer."""
        assert self._transport is not None
        self._wanted = wanted
        self._is_silent = True
        self._mark = _MARKS[wanted.likeness]
        self.began.clear()
        self._tail = b""
        self._body_bytes = self._events = 0
        self._answer = asyncio.get_running_loop().create_future()
        self._asked_s = now_s()
        self._transport.write(wanted.payload)

    def raise_if_over(self) -> None:
        """Raise WrongAnswer when the answer has ended or failed although it should still be streaming."""
        if self._answer is not None and self._answer.done():
            self._answer.result()
            raise WrongAnswer("the answer ended too early")

    def close(self) -> None:
        """Abort the connection and cancel the pending answer."""
        if self._answer is not None:
            self._answer.cancel()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self.is_open = True

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        kind = StaleConnection if self._is_used and self._is_silent else WrongAnswer
        self._fail(f"the connection was closed within an answer, after {self._events} events ({error})", kind)

    def data_received(self, data: bytes) -> None:
        self._is_silent = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")

    def on_body(self, body: bytes) -> None:
        if not self.began.is_set():
            self.began.set()
            self._tally.first_byte_s.append(now_s() - self._asked_s)
        if self._tally.longest_pause_s is not None:
            self._note_pause(self._tally.longest_pause_s)
        self._body_bytes += len(body)
        seen = self._tail + body
        events = seen.count(self._mark) - self._tail.count(self._mark)
        self._events += events
        self._tally.events += events
        self._tail = seen[-len(wire.DONE_EVENT) :]

    def _note_pause(self, longest_s: float) -> None:
        heard_s, self._heard_s = self._heard_s, now_s()
        if heard_s:
            self._tally.longest_pause_s = max(longest_s, self._heard_s - heard_s)

    def stop_reading(self) -> None:
        """Stop reading, so that the rest of the answer stays in the buffers."""
        cast(asyncio.ReadTransport, self._transport).pause_reading()

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        keeps_alive = self._parser.should_keep_alive()
        self._parser = httptools.HttpResponseParser(self)
        fault = self._fault(status)
        if fault:
            self._fail(fault)
        elif self._answer is not None and not self._answer.done():
            self._is_used = True
            self._tally.answers += 1
            self._answer.set_result(None)
        if not keeps_alive:
            self.is_open = False

    def _fault(self, status: int) -> str:
        wanted = self._wanted
        if wanted is None:
            return "an answer without a request"
        if status != 200:
            return f"status {status}: {self._tail!r}"
        if not wanted.tokens:
            return "" if self._is_whole(wanted) else f"a body of {self._body_bytes} bytes, {self._events} marks"
        events = wire.stream_events(wanted.tokens) if wanted.likeness is Likeness.BYTES else wanted.tokens
        if self._events != events or self._tail != wire.DONE_EVENT:
            return f"{self._events} events instead of {events}, the last {self._tail!r}"
        return ""

    def _is_whole(self, wanted: Wanted) -> bool:
        """True if an answer that is not streamed has the engine's length, or its words where it is written anew."""
        if wanted.likeness is Likeness.BYTES:
            return self._body_bytes == len(wire.ANSWER_BODY)
        return self._events == wire.ANSWER_WORDS

    def _fail(self, fault: str, kind: type[WrongAnswer] = WrongAnswer) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(kind(fault))
            self.began.set()


async def connect(port: int, tally: RelayTally) -> Connection:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_CONNECT_MAX_S):
        _, connection = await loop.create_connection(lambda: Connection(tally), "127.0.0.1", port)
    return connection


async def ask_once(port: int, wanted: Wanted) -> None:
    """Send one request on a connection of its own. Raises WrongAnswer, OSError and TimeoutError."""
    connection = await connect(port, RelayTally())
    try:
        async with asyncio.timeout(_ANSWER_MAX_S):
            await connection.ask(wanted)
    finally:
        connection.close()


class _Line:
    """One user's connection, opened again after the relay closed it."""

    def __init__(self, port: int, tally: RelayTally) -> None:
        self._port = port
        self._tally = tally
        self._connection: Connection | None = None

    async def ask(self, wanted: Wanted) -> None:
        if self._connection is None or not self._connection.is_open:
            self._connection = await connect(self._port, self._tally)
        try:
            await self._connection.ask(wanted)
        except StaleConnection:
            self._connection = await connect(self._port, self._tally)
            await self._connection.ask(wanted)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


@asynccontextmanager
async def closed_loop(port: int, wanted: Sequence[Wanted], users: int, *, max_s: float) -> AsyncIterator[RelayTally]:
    """Run `users` users, each sending its next request as soon as the last one is answered, until the context is
    left."""
    tally = RelayTally()
    upcoming = cycle(wanted)
    is_over = False

    async def use() -> None:
        line = _Line(port, tally)
        try:
            while not is_over:
                await line.ask(next(upcoming))
        finally:
            line.close()

    async with asyncio.timeout(max_s), asyncio.TaskGroup() as tasks:
        for _ in range(users):
            tasks.create_task(use())
        yield tally
        is_over = True


@asynccontextmanager
async def open_streams(
    port: int, wanted: Sequence[Wanted], streams: int, *, ramp_s: float, rng: random.Random, max_s: float
) -> AsyncIterator[RelayTally]:
    """Run `streams` streams that begin within `ramp_s`; leaving the context waits for their ends."""
    tally = RelayTally()

    async def read(delay_s: float, each: Wanted) -> None:
        await asyncio.sleep(delay_s)
        line = _Line(port, tally)
        try:
            await line.ask(each)
        finally:
            line.close()

    async with asyncio.timeout(max_s), asyncio.TaskGroup() as tasks:
        for _, each in zip(range(streams), cycle(wanted), strict=False):
            tasks.create_task(read(rng.uniform(0, ramp_s), each))
        yield tally


async def arrivals(
    port: int, wanted: Sequence[Wanted], *, requests_per_s: float, count: int, rng: random.Random, max_s: float
) -> RelayTally:
    """Send requests at their arrival times (open loop), whether or not earlier ones are answered."""
    tally = RelayTally()
    idle: list[_Line] = []
    lines: list[_Line] = []

    async def send(each: Wanted) -> None:
        if idle:
            line = idle.pop()
        else:
            line = _Line(port, tally)
            lines.append(line)
        await line.ask(each)
        idle.append(line)

    try:
        async with asyncio.timeout(max_s), asyncio.TaskGroup() as tasks:
            due_s = now_s()
            for _, each in zip(range(count), cycle(wanted), strict=False):
                due_s += rng.expovariate(requests_per_s)
                await asyncio.sleep(max(0.0, due_s - now_s()))
                tasks.create_task(send(each))
    finally:
        for line in lines:
            line.close()
    return tally


class HeldStreams:
    """Streams that have begun and stay open until they are all cut."""

    def __init__(self, port: int, wanted: Sequence[Wanted]) -> None:
        self._port = port
        self._upcoming = cycle(wanted)
        self._connections: list[Connection] = []
        self.tally = RelayTally()

    async def grow_to(self, streams: int, *, max_s: float) -> None:
        """Open streams up to this number; returns once each has had its first token."""
        async with asyncio.timeout(max_s):
            while len(self._connections) < streams:
                connection = await connect(self._port, self.tally)
                self._connections.append(connection)
                connection.send(next(self._upcoming))
            for connection in self._connections:
                await connection.began.wait()
                connection.raise_if_over()

    async def begin(self, streams: int, *, max_s: float) -> None:
        """Open this many streams without reading their answers."""
        async with asyncio.timeout(max_s):
            for _ in range(streams):
                connection = await connect(self._port, self.tally)
                self._connections.append(connection)
                connection.stop_reading()
                connection.send(next(self._upcoming))

    def cut(self) -> None:
        for connection in self._connections:
            connection.close()
