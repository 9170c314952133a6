"""Keeps background loops alive: one that fails is told, counted, and starts again after a growing pause.

A failed loop never ends another, nor the process.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Self

from gateway.ground.clock import Clock
from gateway.ground.task_group import TaskGroup

_SECOND_NS = 1_000_000_000
_DOUBLINGS_MAX = 32

OnFailure = Callable[[str, Exception], None]
"""Told the name of the loop that failed, and over what."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to leave alone what fails: twice as long after each failure in a row, between bounds."""

    min_ns: int = 100_000_000
    max_ns: int = 30 * _SECOND_NS

    def failures_in_a_row(self, before: int, well_for_ns: int) -> int:
        """With this one. What fails as soon as it is back has not recovered from the failure before."""
        return 1 if well_for_ns > self.max_ns else before + 1

    def pause_s(self, failures: int, rng: random.Random | None = None) -> float:
        """With `rng` scattered, so that what failed together does not return as one."""
        longest_ns = min(self.min_ns << min(max(failures - 1, 0), _DOUBLINGS_MAX), self.max_ns)
        return longest_ns * (1.0 if rng is None else rng.uniform(0.5, 1.0)) / _SECOND_NS


async def keep_running(
    name: str,
    loop: Callable[[], Awaitable[None]],
    *,
    clock: Clock,
    on_failure: OnFailure,
    backoff: Backoff = Backoff(),
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Until the loop returns, or fails when it is wanted no longer."""
    failures = 0
    while is_wanted():
        started_ns = clock.now_ns()
        try:
            await loop()
        except Exception as error:  # noqa: BLE001 - a fault of ours in one loop must not end what else runs
            on_failure(name, error)
        else:
            return
        failures = backoff.failures_in_a_row(failures, clock.now_ns() - started_ns)
        await asyncio.sleep(backoff.pause_s(failures))


class Supervisor:
    """The owner of loops that run while its context lasts."""

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
        """Gives what ends a loop that is wanted no longer."""
        running = keep_running(name, loop, clock=self._clock, on_failure=self._on_failure)
        task = self._tasks.create_task(running, name=name)
        return self._follow(task).cancel

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Something that ends by itself."""
        return self._follow(self._tasks.create_task(work))

    def _follow(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task


class Tenure:
    """Loops of a supervisor that run only while this process owns what they write."""

    def __init__(self, loops: Supervisor, clock: Clock, on_failure: OnFailure) -> None:
        self._loops = loops
        self._clock = clock
        self._on_failure = on_failure
        self._wanted: list[tuple[str, Callable[[], Awaitable[None]]]] = []
        self._running: dict[int, asyncio.Task[None]] = {}
        """By their places among those that are wanted."""
        self._has_begun = False

    def run(self, name: str, loop: Callable[[], Awaitable[None]]) -> Callable[[], object]:
        """Gives what ends a loop that is wanted no longer."""
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
        """Each has written its last when this returns."""
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
