"""An event loop without sockets, tasks or a clock of its own: a test lets callbacks run, and time pass."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any


def _nothing() -> None:
    """Stands for a callback that was cancelled, which must not be kept."""


class ManualHandle:
    """Callback that may be cancelled."""

    def __init__(self, act: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self._act = act
        self._arguments = arguments
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self._act, self._arguments = _nothing, ()

    def run(self) -> None:
        if not self.is_cancelled:
            self._act(*self._arguments)


class ManualLoop:
    """The part of an event loop that code without coroutines uses."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._soon: deque[ManualHandle] = deque()
        self._later: list[tuple[float, int, ManualHandle]] = []
        self._numbers = count()

    @property
    def timers(self) -> int:
        """Timers that are still to fire."""
        return sum(not handle.is_cancelled for _, _, handle in self._later)

    def time(self) -> float:
        return self.now_s

    def call_soon(self, act: Callable[..., object], *arguments: object) -> ManualHandle:
        handle = ManualHandle(act, arguments)
        self._soon.append(handle)
        return handle

    def call_later(self, delay_s: float, act: Callable[..., object], *arguments: object) -> ManualHandle:
        handle = ManualHandle(act, arguments)
        heapq.heappush(self._later, (self.now_s + delay_s, next(self._numbers), handle))
        return handle

    def turn(self) -> None:
        """Run all callbacks that are due, and those that they add."""
        while self._soon:
            self._soon.popleft().run()

    def pass_time(self, seconds: float) -> None:
        """Let time pass; each timer fires in its turn."""
        self.turn()
        until_s = self.now_s + seconds
        while self._later and self._later[0][0] <= until_s:
            self.now_s, _, handle = heapq.heappop(self._later)
            handle.run()
            self.turn()
        self.now_s = until_s


@contextmanager
def manual_loop() -> Iterator[ManualLoop]:
    """The running loop of this thread, inside the context."""
    loop: Any = ManualLoop()
    asyncio._set_running_loop(loop)
    try:
        yield loop
    finally:
        asyncio._set_running_loop(None)
