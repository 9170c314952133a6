"""The fake end of an exchange, which hostile cases of other tests share."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.exchanging import ExchangeFake


class OneAtATime:
    """Context that, like gRPC, goes on with a message whose writer is cancelled, and refuses another until then."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.written: list[bytes] = []
        self._writing: asyncio.Task[None] | None = None
        self.tasks = asyncio.TaskGroup()

    async def write(self, message: bytes) -> None:
        assert self._writing is None or self._writing.done(), "too many operations"
        self._writing = self.tasks.create_task(self._finish(message))
        self.begun.set()
        await asyncio.shield(self._writing)

    async def _finish(self, message: bytes) -> None:
        await self.goes_on.wait()
        self.written.append(message)


@pytest.mark.asyncio
async def test_a_message_whose_writer_is_cancelled_is_written_before_the_next() -> None:
    context = OneAtATime()
    stream = ExchangeFake(context, lambda: pytest.fail("nothing is asked"))
    async with context.tasks as tasks:
        first = tasks.create_task(stream.write(b"first"))
        await context.begun.wait()
        first.cancel()
        await asyncio.wait([first])
        second = tasks.create_task(stream.write(b"second"))
        await asyncio.sleep(0)
        context.goes_on.set()
        await second
    assert context.written == [b"first", b"second"]
