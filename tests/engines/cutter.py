"""Proxy between a gateway and an engine that passes on every byte, and cuts a stream off on request.

It looks as if the engine had been killed; a real engine would take half a minute to start again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_PIECE = 1 << 16
_EVENT = b"data: {"
_PAUSE_S = 0.003


class Cut:
    """Point at which a stream is cut off, shared by all proxies: the first stream with that many events is cut."""

    def __init__(self) -> None:
        self.after_events: int | None = None
        self.cuts = 0

    def order(self, after_events: int) -> None:
        self.after_events = after_events

    def strikes_at(self, events: int, data: bytes) -> int | None:
        """Bytes of `data`, which follows after `events` events, that still pass; None if all of it passes and nothing
        is cut.
        """
        if self.after_events is None or events + data.count(_EVENT) < self.after_events:
            return None
        at = 0
        for _ in range(self.after_events - events):
            at = data.find(b"\n\n", data.find(_EVENT, at)) + 2
        self.after_events = None
        self.cuts += 1
        return at


class _Passed:
    """Progress of one connection, on which requests follow one another."""

    def __init__(self) -> None:
        self.events = 0
        """Events of the answer to the last request."""


class Cutter:
    def __init__(self, engine_port: int, cut: Cut) -> None:
        self.url = ""
        self._engine_port = engine_port
        self._cut = cut

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Cutter]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield self

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine_reader, engine_writer = await asyncio.open_connection("127.0.0.1", self._engine_port)
        try:
            async with asyncio.TaskGroup() as tasks:
                passed = _Passed()
                tasks.create_task(_pass_on(reader, engine_writer, passed))
                tasks.create_task(self._answer(engine_reader, writer, passed))
        except* ConnectionError:
            pass
        finally:
            writer.close()
            engine_writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passed: _Passed) -> None:
        """Pass on the answer. Whole events count, and a stream is never cut within an event."""
        while data := await reader.read(_PIECE):
            at = self._cut.strikes_at(passed.events, data)
            passed.events += data.count(_EVENT)
            for event in (data if at is None else data[:at]).splitlines(keepends=True):
                writer.write(event)
                await writer.drain()
                if event.startswith(_EVENT):  # pieces sent together may be lost by the break before any has arrived
                    await asyncio.sleep(_PAUSE_S)
            if at is not None:
                writer.close()
                raise ConnectionResetError
        writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passed: _Passed) -> None:
    while data := await reader.read(_PIECE):
        if data.startswith(b"POST "):
            passed.events = 0
        writer.write(data)
        await writer.drain()
    writer.close()
