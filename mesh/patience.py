"""Time-out for what another process is to send or read. Only time in which this process ran counts.

A process that was stopped, or busy, finds its timers due and what arrived meanwhile unread. asyncio looks at the timers
first where reading takes more than one turn of its loop, as gRPC's does, and would give up a peer that is well.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from mesh.silence import BEAT_NS, GRACES_MAX, STALL_NS

_BEAT_S = BEAT_NS / 1_000_000_000
_STALL_S = STALL_NS / 1_000_000_000


class Patience:
    """Time-out for one wait, used as `asyncio.timeout` is. It raises TimeoutError after `timeout_s` seconds in which
    this process ran. After a stall there is further time to read what has arrived."""

    def __init__(self, timeout_s: float) -> None:
        self._left_s = timeout_s
        self._graces = 0
        self._scope = asyncio.timeout(None)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        await self._scope.__aenter__()
        self._wait(min(self._left_s, _BEAT_S))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        await self._scope.__aexit__(kind, error, trace)

    def _wait(self, for_s: float) -> None:
        self._due_s = self._loop.time() + for_s
        self._left_s -= for_s
        self._timer = self._loop.call_at(self._due_s, self._look)

    def _look(self) -> None:
        if self._left_s > 0:
            self._wait(min(self._left_s, _BEAT_S))
        elif self._loop.time() - self._due_s >= _STALL_S and self._graces < GRACES_MAX:
            self._graces += 1
            self._wait(_BEAT_S)
        else:
            self._scope.reschedule(self._loop.time())
