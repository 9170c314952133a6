"""A small real server in place of a cluster's API that writes the bytes that a test chooses: lists and watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.fakes.engine import Tally

Answers = Callable[[int], bytes | Iterable[bytes] | None]
"""Bytes of an answer, by the number of earlier requests of its kind; None: silence until the caller leaves."""


@dataclass
class LyingKubernetes:
    lists: Answers
    watches: Answers
    listed: Tally = field(default_factory=Tally)
    watched: Tally = field(default_factory=Tally)
    heads: list[bytes] = field(default_factory=list)
    url: str = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[LyingKubernetes]:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield self

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            is_watch = b"watch=true" in head
            tally, answers = (self.watched, self.watches) if is_watch else (self.listed, self.lists)
            told = answers(tally.count)
            tally.add()
            for piece in [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"] if told is None else _pieces(told):
                if writer.is_closing():
                    return
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if told is None:
                await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def _pieces(told: bytes | Iterable[bytes]) -> Iterable[bytes]:
    return [told] if isinstance(told, bytes) else told
