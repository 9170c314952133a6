"""One background loop per engine, as engines come and go. It knows nothing of what the loops do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

from gateway.engines.endpoints import Engine, ReplicaEndpoints
from gateway.ground.clock import Clock
from gateway.ground.supervisor import Backoff, OnFailure, keep_running
from gateway.ground.task_group import TaskGroup


class EngineLoops:
    """A loop that fails by our own fault starts again after a pause, is counted, and ends no other."""

    def __init__(
        self,
        endpoints: ReplicaEndpoints,
        clock: Clock,
        backoff: Backoff,
        on_restart: OnFailure | None = None,
    ) -> None:
        """`on_restart` is told the URL of the engine."""
        self.restarts: Counter[str] = Counter()
        self._endpoints = endpoints
        self._clock = clock
        self._backoff = backoff
        self._on_restart = on_restart

    async def run(self, loop: Callable[[Engine], Awaitable[None]]) -> None:
        """Until cancelled. `loop` returns when the engine is no longer ours, or needs no loop; it is called again for
        an engine that is still there after the next change."""
        running: dict[Engine, asyncio.Task[None]] = {}
        async with TaskGroup() as tasks:
            while True:
                running = {engine: task for engine, task in running.items() if not task.done()}
                for engine in self._endpoints.engines():
                    if engine not in running:
                        running[engine] = tasks.create_task(self._keep_running(loop, engine))
                await self._endpoints.until_replaced()

    async def _keep_running(self, loop: Callable[[Engine], Awaitable[None]], engine: Engine) -> None:
        await keep_running(
            engine.url,
            partial(loop, engine),
            clock=self._clock,
            on_failure=self._failed,
            backoff=self._backoff,
            is_wanted=lambda: bool(self._endpoints.of(engine)),
        )

    def _failed(self, url: str, error: Exception) -> None:
        self.restarts[url] += 1
        if self._on_restart is not None:
            self._on_restart(url, error)
