"""Runs the discovery sources that the region file names, and replaces them when it names others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Never

from gateway.config.targets import ReplicaConfig
from gateway.discovery.source import ReplicaSource
from mesh.task_group import TaskGroup

OnFound = Callable[[str, tuple[ReplicaConfig, ...]], None]


class Discovery:
    """Discovery sources, each in a task of its own. A source is replaced by another object, which starts anew."""

    def __init__(self, sources: Iterable[ReplicaSource], on_found: OnFound) -> None:
        self._sources = tuple(sources)
        self._on_found = on_found
        self._changed = asyncio.Event()

    @property
    def sources(self) -> tuple[ReplicaSource, ...]:
        return self._sources

    def replace(self, sources: Iterable[ReplicaSource]) -> None:
        self._sources = tuple(sources)
        self._changed.set()

    async def first_look(self) -> None:
        """Wait until every source has looked once."""
        for source in self._sources:
            await source.first_look()

    async def run(self) -> Never:
        """Run the sources until cancelled."""
        async with TaskGroup() as tasks:
            running: dict[ReplicaSource, asyncio.Task[None]] = {}
            while True:
                self._changed.clear()
                for source in [each for each in running if each not in self._sources]:
                    running.pop(source).cancel()
                for source in self._sources:
                    if source not in running:
                        running[source] = tasks.create_task(source.run(partial(self._found, source)))
                await self._changed.wait()

    def _found(self, source: ReplicaSource, replicas: tuple[ReplicaConfig, ...]) -> None:
        """Pass on the replicas of a source; a late report of a source that was replaced is dropped."""
        if source in self._sources:
            self._on_found(source.name, replicas)
