"""Listener of a leg that keeps what it hears, for tests to look at or wait for."""

from __future__ import annotations

from collections.abc import Callable

from gateway.request.answer_events import TokenUsage
from gateway.request.legs import LegFailure, LegHandle, LegHead
from tests.support.gateways import until

_LAST = frozenset({"end", "failed", "fault"})


class Heard:
    """Words of one leg, in order. Nothing may follow a last word."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.body = b""
        self.failure: LegFailure | None = None
        self.fault: Exception | None = None
        self.counted: TokenUsage | None = None
        self.handle: LegHandle | None = None
        self.on_told: Callable[[str], None] = lambda _: None
        self._head: LegHead | None = None

    @property
    def head(self) -> LegHead:
        assert self._head is not None, "it has a head"
        return self._head

    def stop(self) -> None:
        assert self.handle is not None, "it was opened"
        self.handle.stop()

    async def hears(self, word: str) -> None:
        await until(lambda: word in self.told)

    async def is_over(self) -> None:
        await until(lambda: not _LAST.isdisjoint(self.told))

    async def whole(self) -> bytes:
        """Body of the answer once it is complete. Raises the failure or the fault."""
        await self.is_over()
        if self.failure is not None:
            raise self.failure
        if self.fault is not None:
            raise self.fault
        return self.body

    # Listener

    def on_accepted(self) -> None:
        self._tell("accepted")

    def on_head(self, head: LegHead) -> None:
        assert self._head is None, "there is one head"
        self._head = head
        self._tell("head")

    def on_data(self, data: bytes) -> None:
        assert self._head is not None, "the head comes first"
        self.body += data
        self._tell("data")

    def on_end(self, counted: TokenUsage | None) -> None:
        self.counted = counted
        self._tell("end")

    def on_failed(self, failure: LegFailure) -> None:
        self.failure = failure
        self._tell("failed")

    def on_fault(self, error: Exception) -> None:
        self.fault = error
        self._tell("fault")

    def _tell(self, word: str) -> None:
        assert _LAST.isdisjoint(self.told), f"{word} after the last word"
        self.told.append(word)
        self.on_told(word)
