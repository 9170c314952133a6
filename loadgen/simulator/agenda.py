"""Event queue of the simulation: a heap of actions and the virtual time at which each is due.

It knows neither what the actions do nor any other time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Action = Callable[..., None]


class Agenda:
    """Queue of due actions. Actions due at the same time run in the order of their entry, so that a seed is
    reproducible."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.done = 0
        """Number of actions run so far."""
        self._heap: list[tuple[int, int, Action, tuple[Any, ...]]] = []
        self._serial = 0

    def at(self, at_ns: int, action: Action, *details: Any) -> None:
        assert at_ns >= self.now_ns, "nothing can be due in the past"
        self._serial += 1
        heapq.heappush(self._heap, (at_ns, self._serial, action, details))

    def after(self, delay_ns: int, action: Action, *details: Any) -> None:
        self.at(self.now_ns + delay_ns, action, *details)

    def run_until(self, end_ns: int) -> None:
        """Run all actions that are due up to and including `end_ns`."""
        heap = self._heap
        while heap and heap[0][0] <= end_ns:
            self.now_ns, _, action, details = heapq.heappop(heap)
            self.done += 1
            action(*details)
        self.now_ns = end_ns
