"""Holds this gateway's newest load report and wakes the subscriptions that wait for it. Only one report is kept, so
that a slow subscriber cannot build up a backlog.
"""

from __future__ import annotations

import asyncio

from msgspec import Struct

from gateway.core.vocabulary import LoadReport


class PublishedLoad(Struct, frozen=True):
    report: LoadReport
    posted_ns: int


class LoadPublisher:
    """The core's heartbeats are posted here; each subscription takes the newest report when it is ready to send one."""

    def __init__(self) -> None:
        self.newest: PublishedLoad | None = None
        self.closed = False
        self._changed = asyncio.Event()

    def post(self, report: LoadReport, now_ns: int) -> None:
        self.newest = PublishedLoad(report, now_ns)
        self._wake()

    def close(self) -> None:
        """End every subscription."""
        self.closed = True
        self._wake()

    async def newer_than(self, seen: PublishedLoad | None, *, wait_max_s: float) -> PublishedLoad | None:
        """The newest report: as soon as it differs from `seen`, else the same report again after `wait_max_s` seconds.

        Returns None if the board is closed and has no newer report, or if no report was ever posted.
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
