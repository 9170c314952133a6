"""Opens the connections of a case of `tests/hostile/event_streams.py`."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from mesh.values import Address
from tests.hostile.event_streams import StormCase, Then

_AT_ONCE = 50
_RESET = struct.pack("ii", 1, 0)


@dataclass
class Storm:
    case: StormCase
    address: Address
    streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)
    began: Counter[bytes] = field(default_factory=Counter)
    """Answers that were read, counted by their first line."""
    watching: int = 0

    async def blow(self) -> None:
        for _ in range(self.case.times):
            left = self.case.count
            while left > 0:
                async with asyncio.TaskGroup() as tasks:
                    for _ in range(min(left, _AT_ONCE)):
                        tasks.create_task(self._come())
                left -= _AT_ONCE

    async def _come(self) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection(self.address.host, self.address.port)
            self.streams.append((reader, writer))
            writer.write(self.case.says)
            match self.case.then:
                case Then.READ:
                    await self._read(reader)
                case Then.HALF_CLOSE:
                    writer.write_eof()
                case Then.RESET:
                    _set_reset(writer)
                    self.streams.remove((reader, writer))
                    writer.transport.abort()
                case Then.HOLD:
                    pass

    async def _read(self, reader: asyncio.StreamReader) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.began[head.split(b"\r\n", 1)[0]] += 1
        self.watching += b"text/event-stream" in head

    async def subside(self) -> None:
        for _, writer in self.streams:
            writer.transport.abort()
        self.streams.clear()


def _set_reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


@asynccontextmanager
async def blowing(case: StormCase, address: Address) -> AsyncIterator[Storm]:
    storm = Storm(case, address)
    try:
        async with asyncio.timeout(60):
            await storm.blow()
        yield storm
    finally:
        await storm.subside()
