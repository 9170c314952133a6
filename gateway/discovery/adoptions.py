"""Tracks how long adopted engines have been silent, and gives up for a while those silent too long: an adopted engine
was named by another gateway, which may have named one that never existed. This module opens no connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Never

from gateway.config.sections import ControlConfig
from gateway.config.targets import ReplicaConfig
from mesh.clock import Clock

_SECOND_NS = 1_000_000_000


class Adoptions:
    """Silence of adopted engines, by URL: since when each is silent, and until when those given up stay given up."""

    def __init__(self, clock: Clock, config: ControlConfig, on_change: Callable[[], None]) -> None:
        """Call `on_change` whenever an engine is given up or tried again."""
        self._clock = clock
        self._config = config
        self._on_change = on_change
        self._silent_since_ns: dict[str, int] = {}
        self._given_up_until_ns: dict[str, int] = {}
        self._changed = asyncio.Event()

    def configure(self, config: ControlConfig, adopted: Iterable[ReplicaConfig]) -> None:
        """Take a new configuration and the replicas that are adopted; forget all other engines."""
        self._config = config
        urls = {each.url for each in adopted}
        for known in (self._silent_since_ns, self._given_up_until_ns):
            for url in known.keys() - urls:
                del known[url]

    def given_up(self, replicas: Iterable[ReplicaConfig]) -> dict[str, str]:
        """Reasons, by replica id, for those of the replicas that are given up."""
        silent_s = self._config.adopted_silent_max_ns / _SECOND_NS
        why = f"adopted, and its engine has not answered for {silent_s:g} s (control.adopted_silent_max)"
        given_up = (each for each in replicas if each.is_adopted and each.url in self._given_up_until_ns)
        return {each.spec.replica_id: why for each in given_up}

    def looked_at(self, url: str, has_answered: bool) -> None:
        """Record the outcome of one probe of an adopted engine; give it up after `adopted_silent_max_ns` of silence."""
        if has_answered:
            self._silent_since_ns.pop(url, None)
            return
        now_ns = self._clock.now_ns()
        if now_ns - self._silent_since_ns.setdefault(url, now_ns) < self._config.adopted_silent_max_ns:
            return
        del self._silent_since_ns[url]
        self._given_up_until_ns[url] = now_ns + self._config.adopted_retry_ns
        self._changed.set()
        self._on_change()

    def try_again(self) -> None:
        """Try engines whose retry is due; each may again be silent for `adopted_silent_max_ns`."""
        now_ns = self._clock.now_ns()
        due = [url for url, until_ns in self._given_up_until_ns.items() if now_ns >= until_ns]
        for url in due:
            del self._given_up_until_ns[url]
        if due:
            self._on_change()

    async def run(self) -> Never:
        """Try given-up engines when they are due, until cancelled."""
        while True:
            self._changed.clear()
            next_ns = min(self._given_up_until_ns.values(), default=None)
            wait_s = None if next_ns is None else max(0, next_ns - self._clock.now_ns()) / _SECOND_NS
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                self.try_again()
