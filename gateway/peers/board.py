"""Our newest load report, and who waits for it. It keeps one report, so a slow subscriber can never make a backlog."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gateway.core.scaling.vocabulary import ScalingReport
from gateway.core.vocabulary import LoadReport


@dataclass(frozen=True, slots=True)
class Posted:
    report: LoadReport
    posted_ns: int


class LoadBoard:
    """The core's heartbeats go up here; each subscription takes the newest whenever it is ready for one."""

    def __init__(self) -> None:
        self.newest: Posted | None = None
        self.closed = False
        self.scaling = ScalingReport()
        """Goes out with every report: it is never news by itself."""
        self._changed = asyncio.Event()

    def post(self, report: LoadReport, now_ns: int) -> None:
        self.newest = Posted(report, now_ns)
        self._wake()

    def close(self) -> None:
        """Let every subscription end."""
        self.closed = True
        self._wake()

    async def newer_than(self, seen: Posted | None, *, wait_max_s: float) -> Posted | None:
        """The newest report: a newer one as soon as there is one, else the same again once `wait_max_s` is over.

        None when the board was closed and there is none newer, or when nothing was ever posted.
        """
        try:
            async with asyncio.timeout(wait_max_s):
                while self.newest is seen and not self.closed:
                    await self._changed.wait()
        except TimeoutError:
            pass
        return None if self.closed and self.newest is seen else self.newest

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
