"""Keeps background loops alive: a loop that fails is logged, counted, and started again after a growing pause.

A failed loop ends neither another one nor the process.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Self

from msgspec import Struct

from mesh.clock import Clock
from mesh.task_group import TaskGroup

_SECOND_NS = 1_000_000_000
_DOUBLINGS_MAX = 32

OnFailure = Callable[[str, Exception], None]
"""Callback that gets the name of the loop that failed, and the error."""


class Backoff(Struct, frozen=True):
    """Pause after a failure: twice as long after each failure in a row, between bounds."""

    min_ns: int = 100_000_000
    max_ns: int = 30 * _SECOND_NS

    def failures_in_a_row(self, before: int, well_for_ns: int) -> int:
        """Number of failures in a row, this one included. A loop that ran for `well_for_ns` of at most `max_ns` has not
        recovered from the failure before."""
        return 1 if well_for_ns > self.max_ns else before + 1

    def pause_s(self, failures: int, rng: random.Random | None = None) -> float:
        """Seconds to pause. With `rng` they are scattered, so that what failed together does not return together."""
        longest_ns = min(self.min_ns << min(max(failures - 1, 0), _DOUBLINGS_MAX), self.max_ns)
        return longest_ns * (1.0 if rng is None else rng.uniform(0.5, 1.0)) / _SECOND_NS


async def keep_running(
    name: str,
    loop: Callable[[], Awaitable[None]],
    *,
    clock: Clock,
    on_failure: OnFailure,
    backoff: Backoff = Backoff(),  # noqa: B008 - frozen
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Run the loop until it returns, or until it fails and is not wanted. A failed loop is started again after a
    pause."""
    failures = 0
    while is_wanted():
        started_ns = clock.now_ns()
        try:
            await loop()
        except Exception as error:  # noqa: BLE001 - a defect in one loop must not end what else runs
            on_failure(name, error)
        else:
            return
        failures = backoff.failures_in_a_row(failures, clock.now_ns() - started_ns)
        await asyncio.sleep(backoff.pause_s(failures))


class Supervisor:
    """Owner of loops that run while its context lasts."""

    def __init__(self, clock: Clock, on_failure: OnFailure) -> None:
        self._clock = clock
        self._on_failure = on_failure
        self._tasks = TaskGroup()
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._running:
            task.cancel()
        await self._tasks.__aexit__(None, None, None)

    def run(self, name: str, loop: Callable[[], Awaitable[None]]) -> Callable[[], object]:
        """Start a loop, and return a function that ends it."""
        running = keep_running(name, loop, clock=self._clock, on_failure=self._on_failure)
        task = self._tasks.create_task(running, name=name)
        return self._follow(task).cancel

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start work that ends by itself."""
        return self._follow(self._tasks.create_task(work))

    def _follow(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task


class OwnedLoops:
    """Loops of a supervisor that run only while this process owns what they write."""

    def __init__(self, loops: Supervisor, clock: Clock, on_failure: OnFailure) -> None:
        self._loops = loops
        self._clock = clock
        self._on_failure = on_failure
        self._wanted: list[tuple[str, Callable[[], Awaitable[None]]]] = []
        self._running: dict[int, asyncio.Task[None]] = {}
        """Running tasks by the indexes of their loops in `_wanted`."""
        self._has_begun = False

    def run(self, name: str, loop: Callable[[], Awaitable[None]]) -> Callable[[], object]:
        """Add a loop, start it if the others run, and return a function that ends it."""
        self._wanted.append((name, loop))
        place = len(self._wanted) - 1
        if self._has_begun:
            self._start(place)

        def stop() -> None:
            self._wanted[place] = ("", _return_at_once)
            if (task := self._running.pop(place, None)) is not None:
                task.cancel()

        return stop

    def begin(self) -> None:
        self._has_begun = True
        for place in range(len(self._wanted)):
            if place not in self._running:
                self._start(place)

    async def end(self) -> None:
        """End all loops; each has written its last when this returns."""
        self._has_begun = False
        tasks = list(self._running.values())
        self._running.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _start(self, place: int) -> None:
        name, loop = self._wanted[place]
        running = keep_running(name, loop, clock=self._clock, on_failure=self._on_failure)
        self._running[place] = self._loops.start(running)


async def _return_at_once() -> None:
    pass
