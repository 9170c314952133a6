"""Proxy between a gateway and the socket at which an engine publishes its KV events: it loses messages or connections
when a test says so, and passes on all others as they are.
"""

from __future__ import annotations

import asyncio
from asyncio import IncompleteReadError, StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from mesh.zmtp import SocketType, message_bytes, read_message, shake_hands

_GREETING_BYTES = 64
_MESSAGE_MAX = 2**24
_PIECE = 1 << 16
_NUMBER_BYTES = 8
_END = 2**64 - 1


class EventsTap:
    def __init__(self, engine_port: int) -> None:
        self.port = 0
        self.is_losing = False
        """Messages that the engine publishes at present are lost."""
        self.is_cut = False
        """Connections are closed as soon as they are opened."""
        self.lost = 0
        """Messages that were lost."""
        self._engine_port = engine_port
        self._writers: set[StreamWriter] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[EventsTap]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            try:
                yield self
            finally:
                self.cut()

    def cut(self) -> None:
        """Close all connections, and those to come until `is_cut` is false again."""
        self.is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    async def _connected(self, reader: StreamReader, writer: StreamWriter) -> None:
        if self.is_cut:
            writer.close()
            return
        try:
            engine_reader, engine_writer = await asyncio.open_connection("127.0.0.1", self._engine_port)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, engine_writer}
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_pass_on(reader, engine_writer))
                tasks.create_task(self._publish(engine_reader, writer))
        except* (OSError, IncompleteReadError):
            pass
        finally:
            for each in (writer, engine_writer):
                self._writers.discard(each)
                each.close()

    async def _publish(self, engine: StreamReader, writer: StreamWriter) -> None:
        """Pass on the greeting and what the engine says of its socket, and then its messages."""
        writer.write(await engine.readexactly(_GREETING_BYTES))
        head = await engine.readexactly(2)
        writer.write(head + await engine.readexactly(head[1]))
        while True:
            parts, _ = await read_message(engine, _MESSAGE_MAX)
            if self.is_losing:
                self.lost += 1
            else:
                writer.write(message_bytes(parts))
                await writer.drain()


async def repeated(replay_port: int) -> list[bytes]:
    """Batches that the engine still has, as it repeats them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", replay_port)
    try:
        await shake_hands(reader, writer.write, SocketType.DEALER)
        writer.write(message_bytes([b"", bytes(_NUMBER_BYTES)]))
        batches: list[bytes] = []
        while True:
            parts, _ = await read_message(reader, _MESSAGE_MAX)
            if int.from_bytes(parts[-2], "big") == _END:
                return batches
            batches.append(parts[-1])
    finally:
        writer.close()


async def _pass_on(reader: StreamReader, writer: StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(_PIECE):
            writer.write(data)
            await writer.drain()
    writer.close()
