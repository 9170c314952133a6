"""Engines that answer with arbitrary bytes, against a gateway's real client.

The cases are data: `tests/hostile/engine_answers.py`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from tests.fakes.engine import GOOD_STREAM, FakeEngine, metrics_page
from tests.hostile.engine_answers import ENGINE_CASES, LATER, End, EngineCase, streamed
from tests.support.hostile import ENOUGH_S, Besieged, besieged, sent
from tests.support.listening import listening
from tests.support.wire import Wire, posted, wire

GOOD_CASE = EngineCase("good", streamed(*GOOD_STREAM), 200, counts=False)
_PAGE = metrics_page(0, 0).encode()
_LOAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%b" % (len(_PAGE), _PAGE)


class RawEngine(FakeEngine):
    """Engine that writes a case's bytes; its probes are those of a good engine."""

    def __init__(self) -> None:
        super().__init__()
        self.case = GOOD_CASE
        self.written = asyncio.Event()
        """Set once the case's whole answer has been written."""
        self.client_has_something = asyncio.Event()

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[FakeEngine]:
        async with listening(self._talk) as self.port:
            self.url = f"http://127.0.0.1:{self.port}"
            yield self

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET"):
                writer.write(_LOAD)
                continue
            await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
            self.arrived.add()
            case = self.case
            await self._write(case, self.written, Wire(reader, writer))
            if case.end is not End.KEEP:
                return

    async def _write(self, case: EngineCase, written: asyncio.Event, connection: Wire) -> None:
        try:
            for piece in case.pieces:
                if piece is LATER:
                    await self.client_has_something.wait()
                connection.send(piece)
                await connection.writer.drain()
                await asyncio.sleep(0)
        finally:  # the gateway may have left
            written.set()
        if case.end is End.HOLD:
            await connection.reader.read()
        elif case.end is End.RESET:
            await asyncio.sleep(0.01)  # an earlier reset would discard bytes that were written
            connection.reset()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def at(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Besieged]:
    async with besieged(tmp_path_factory.mktemp("hostile"), engine=RawEngine()) as made:
        yield made


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", ENGINE_CASES, ids=lambda case: case.name)
async def test_it_is_held_against_the_engine_alone(at: Besieged, case: EngineCase) -> None:
    assert isinstance(at.engine, RawEngine)
    failures = at.failures("replica")
    at.engine.case, at.engine.written = case, asyncio.Event()
    at.engine.client_has_something.clear()
    at.told.clear()
    received = (
        await left_in_silence(at)
        if case.end is End.HOLD
        else await sent(at.gateway, posted("connection: close"), on_first=at.engine.client_has_something.set)
    )
    await at.engine.written.wait()
    at.engine.case, at.engine.written = GOOD_CASE, asyncio.Event()
    assert int(received[9:12] or 0) == case.status, received[:2000]
    assert case.contains in received
    assert not case.lacks or case.lacks not in received
    await at.goes_on()
    assert at.failures("replica") - failures == case.counts


async def left_in_silence(at: Besieged) -> bytes:
    assert isinstance(at.engine, RawEngine)
    async with asyncio.timeout(ENOUGH_S), wire(at.gateway) as client:
        client.post()
        await at.engine.written.wait()
    return b""


def test_each_is_told_apart() -> None:
    assert len(ENGINE_CASES) >= 60
    assert len({case.name for case in ENGINE_CASES}) == len(ENGINE_CASES)
