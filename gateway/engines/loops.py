"""One background loop per engine, as engines come and go. It knows nothing of what the loops do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.engines.endpoints import Engine, ReplicaEndpoints
from gateway.ground.clock import Clock

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LoopSettings:
    restart_min_s: float = 0.1
    restart_max_s: float = 30.0


class EngineLoops:
    """A loop that fails by our own fault starts again after a pause, is counted, and ends no other."""

    def __init__(
        self,
        endpoints: ReplicaEndpoints,
        clock: Clock,
        settings: LoopSettings,
        on_restart: Callable[[str, Exception], None] | None = None,
    ) -> None:
        """`on_restart` is told the URL of the engine."""
        self.restarts: Counter[str] = Counter()
        self._endpoints = endpoints
        self._clock = clock
        self._settings = settings
        self._on_restart = on_restart

    async def run(self, loop: Callable[[Engine], Awaitable[None]]) -> None:
        """Until cancelled. `loop` returns when the engine is no longer ours, or needs no loop; it is called again for
        an engine that is still there after the next change."""
        running: dict[Engine, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                running = {engine: task for engine, task in running.items() if not task.done()}
                for engine in self._endpoints.engines():
                    if engine not in running:
                        running[engine] = tasks.create_task(self._keep_running(loop, engine))
                await self._endpoints.until_replaced()

    async def _keep_running(self, loop: Callable[[Engine], Awaitable[None]], engine: Engine) -> None:
        pause_s = self._settings.restart_min_s
        while self._endpoints.of(engine):
            started_ns = self._clock.now_ns()
            try:
                await loop(engine)
            except Exception as error:  # noqa: BLE001 - a fault of ours in one loop must not end the others
                self.restarts[engine.url] += 1
                if self._on_restart is not None:
                    self._on_restart(engine.url, error)
            else:
                return
            if self._clock.now_ns() - started_ns > self._settings.restart_max_s * _SECOND_NS:
                pause_s = self._settings.restart_min_s
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._settings.restart_max_s)
