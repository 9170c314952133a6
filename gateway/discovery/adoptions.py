"""Adopted engines that have been silent for so long that they are given up for a while: another gateway has named them,
and may have named what never was. It opens no connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Never

from gateway.config.sections import ControlConfig
from gateway.config.targets import ReplicaConfig
from gateway.ground.clock import Clock

_SECOND_NS = 1_000_000_000


class Adoptions:
    """By URL, since when each engine has been silent, and until when those that are given up stay so."""

    def __init__(self, clock: Clock, config: ControlConfig, on_change: Callable[[], None]) -> None:
        """`on_change` is told whenever an engine is given up or tried again."""
        self._clock = clock
        self._config = config
        self._on_change = on_change
        self._silent_since_ns: dict[str, int] = {}
        self._given_up_until_ns: dict[str, int] = {}
        self._changed = asyncio.Event()

    def configure(self, config: ControlConfig, adopted: Iterable[ReplicaConfig]) -> None:
        """New numbers, and all that is adopted now: nothing is remembered of any other engine."""
        self._config = config
        urls = {each.url for each in adopted}
        for known in (self._silent_since_ns, self._given_up_until_ns):
            for url in known.keys() - urls:
                del known[url]

    def given_up(self, replicas: Iterable[ReplicaConfig]) -> dict[str, str]:
        """By id, those of them that are left out, and why."""
        silent_s = self._config.adopted_silent_max_ns / _SECOND_NS
        why = f"adopted, and its engine has not answered for {silent_s:g} s (control.adopted_silent_max)"
        given_up = (each for each in replicas if each.is_adopted and each.url in self._given_up_until_ns)
        return {each.spec.replica_id: why for each in given_up}

    def looked_at(self, url: str, has_answered: bool) -> None:
        """After each look at an adopted engine."""
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
        """Those that are due are asked for as long again as at first."""
        now_ns = self._clock.now_ns()
        due = [url for url, until_ns in self._given_up_until_ns.items() if now_ns >= until_ns]
        for url in due:
            del self._given_up_until_ns[url]
        if due:
            self._on_change()

    async def run(self) -> Never:
        """Until cancelled."""
        while True:
            self._changed.clear()
            next_ns = min(self._given_up_until_ns.values(), default=None)
            wait_s = None if next_ns is None else max(0, next_ns - self._clock.now_ns()) / _SECOND_NS
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                self.try_again()
