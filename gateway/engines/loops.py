"""Runs one background loop per engine as engines come and go, whatever the loops do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

from gateway.engines.endpoints import Engine, ReplicaEndpoints
from mesh.clock import Clock
from mesh.supervisor import Backoff, OnFailure, keep_running
from mesh.task_group import TaskGroup

_SECOND_NS = 1_000_000_000
QUESTIONS_SHARE = 0.125
"""Rate of each other kind of question to adopted engines, as a share of the rate of load probes."""


class ProbeRateLimit:
    """Rate limit of probes to adopted engines, whose addresses other gateways have told."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_ns = 0

    def wait_s(self, looks_per_s: float) -> float:
        """Reserve the next turn; returns the seconds until then."""
        now_ns = self._clock.now_ns()
        turn_ns = max(now_ns, self._next_ns)
        self._next_ns = turn_ns + int(_SECOND_NS / looks_per_s)
        return (turn_ns - now_ns) / _SECOND_NS


class EngineLoops:
    """Loops of all engines. A loop that fails by an internal error starts again after a pause, is counted, and ends no
    other loop."""

    def __init__(
        self,
        endpoints: ReplicaEndpoints,
        clock: Clock,
        backoff: Backoff,
        on_restart: OnFailure | None = None,
    ) -> None:
        """`on_restart` is called with the engine's URL and the error."""
        self.restarts: Counter[str] = Counter()
        self._endpoints = endpoints
        self._clock = clock
        self._backoff = backoff
        self._on_restart = on_restart

    async def run(self, loop: Callable[[Engine], Awaitable[None]]) -> None:
        """Run until cancelled. `loop` returns when the engine is no longer this gateway's or needs no loop; it is
        called again for an engine that is still present at the next change."""
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
