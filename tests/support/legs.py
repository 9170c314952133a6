"""A request's end of a leg, as a test sees it: what the leg has told, in order, and at most one end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from gateway.request.answer_events import TokenUsage
from gateway.request.legs import LegFailure, LegHandle, LegHead


class HeardLeg:
    """Listener of one leg. After the leg's end, nothing may be told; `told` has each call's name, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.pieces: list[bytes] = []
        self.heard_head: LegHead | None = None
        self.counted: TokenUsage | None = None
        self.failure: LegFailure | None = None
        self.fault: Exception | None = None
        self.ends = 0
        self.on_told: Callable[[str], None] = lambda _: None
        """Called at each call of the leg, with its name."""
        self._changed: asyncio.Future[None] | None = None
        self._read = 0

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def head(self) -> LegHead:
        assert self.heard_head is not None, "no head came"
        return self.heard_head

    # Listener

    def on_accepted(self) -> None:
        self._note("accepted")

    def on_head(self, head: LegHead) -> None:
        self.heard_head = head
        self._note("head")

    def on_data(self, data: bytes) -> None:
        self.pieces.append(data)
        self._note("data")

    def on_end(self, counted: TokenUsage | None) -> None:
        self.counted = counted
        self._end("end")

    def on_failed(self, failure: LegFailure) -> None:
        self.failure = failure
        self._end("failed")

    def on_fault(self, error: Exception) -> None:
        self.fault = error
        self._end("fault")

    # Tests with a running loop

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until the condition holds; it is checked at each call of the leg."""
        while not holds():
            if self._changed is None or self._changed.done():
                self._changed = asyncio.get_running_loop().create_future()
            await self._changed

    async def until_over(self) -> None:
        """Wait for the leg's end. Raises the failure or the error that ended it."""
        await self.until(lambda: self.ends)
        self._raise()

    async def until_head(self) -> None:
        """Wait for the head. Raises the failure or the error that came first."""
        await self.until(lambda: self.heard_head or self.ends)
        self._raise()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Pieces of the body that were not read yet, until the leg ends. Raises what ended it."""
        while True:
            await self.until(lambda: self._read < len(self.pieces) or self.ends)
            while self._read < len(self.pieces):
                self._read += 1
                yield self.pieces[self._read - 1]
            if self.ends:
                self._raise()
                return

    # Internal

    def _raise(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self.fault is not None:
            raise self.fault

    def _end(self, name: str) -> None:
        self.ends += 1
        self._note(name)

    def _note(self, name: str) -> None:
        assert self.ends == (name in ("end", "failed", "fault")), f"{name} after {self.told}"
        self.told.append(name)
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        self.on_told(name)


class OpenLeg(HeardLeg):
    """Listener with the handle of its leg."""

    def __init__(self) -> None:
        super().__init__()
        self.handle: LegHandle
