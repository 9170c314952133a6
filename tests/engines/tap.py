"""Proxy between a gateway and an engine that passes on every byte, and keeps the bodies that the engine sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httptools

_PIECE = 1 << 16


class Tap:
    def __init__(self, engine_port: int) -> None:
        self.url = ""
        self.answers: list[bytes] = []
        """Bodies of whole answers to POST requests, in the order in which they ended."""
        self._engine_port = engine_port

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Tap]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield self

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine_reader, engine_writer = await asyncio.open_connection("127.0.0.1", self._engine_port)
        listener = _Listener(self.answers)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_pass_on(reader, engine_writer, listener.asked))
                tasks.create_task(_pass_on(engine_reader, writer, listener.answered))
        except* ConnectionError:
            pass
        finally:
            writer.close()
            engine_writer.close()


class _Listener:
    """Follows one connection, on which requests follow one another."""

    def __init__(self, answers: list[bytes]) -> None:
        self._answers = answers
        self._is_post = False
        self._body = bytearray()
        self._parser = httptools.HttpResponseParser(self)

    def asked(self, data: bytes) -> None:
        if data.startswith((b"POST ", b"GET ")):
            self._is_post = data.startswith(b"POST ")

    def answered(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body.clear()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._is_post:
            self._answers.append(bytes(self._body))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listen: Callable[[bytes], None]) -> None:
    while data := await reader.read(_PIECE):
        listen(data)
        writer.write(data)
        await writer.drain()
    writer.close()
