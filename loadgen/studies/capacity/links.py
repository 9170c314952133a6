"""Counts the bytes between gateways: TCP connections through a port of its own, which carries them unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

_HOST = "127.0.0.1"
_PIECE_BYTES = 1 << 16


class CountedLinks:
    """Ways to ports of this machine, and the bytes that they have carried, in both directions."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.carried = 0
        self._tasks = tasks
        self._servers: list[asyncio.Server] = []
        self._running: set[asyncio.Task[None]] = set()

    async def way_to(self, address: str) -> str:
        """Address that leads to another one."""
        port = int(address.rpartition(":")[2])

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._tasks.create_task(self._carry(reader, writer, port))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

        server = await asyncio.start_server(carry, _HOST, 0)
        self._servers.append(server)
        return f"{_HOST}:{server.sockets[0].getsockname()[1]}"

    async def lead(self, document: dict[str, Any]) -> None:
        """Lead every peer of a region file's content through a way of its own."""
        for peer in document.get("peers", ()):
            peer["address"] = await self.way_to(peer["address"])

    def close(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._running:
            task.cancel()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(_HOST, port)
        except OSError:  # the gateway does not listen yet
            writer.close()
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, there_writer))
                both.create_task(self._pump(there_reader, writer))
        finally:
            writer.close()
            there_writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(_PIECE_BYTES):
                self.carried += len(piece)
                writer.write(piece)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def counted_links() -> AsyncIterator[CountedLinks]:
    """Ways that end with the context."""
    async with asyncio.TaskGroup() as tasks:
        links = CountedLinks(tasks)
        try:
            yield links
        finally:
            links.close()
