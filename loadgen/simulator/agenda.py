"""What happens when: a heap of things to do and the virtual time at which each is due.

It knows nothing of what they are, and no other time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Action = Callable[..., None]


class Agenda:
    """Things due at the same time are done in the order in which they were entered, so one seed tells one story."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.done = 0
        """How many things were done so far."""
        self._heap: list[tuple[int, int, Action, tuple[Any, ...]]] = []
        self._serial = 0

    def at(self, at_ns: int, action: Action, *details: Any) -> None:
        assert at_ns >= self.now_ns, "nothing can be due in the past"
        self._serial += 1
        heapq.heappush(self._heap, (at_ns, self._serial, action, details))

    def after(self, delay_ns: int, action: Action, *details: Any) -> None:
        self.at(self.now_ns + delay_ns, action, *details)

    def run_until(self, end_ns: int) -> None:
        """Do everything that is due up to and including `end_ns`."""
        heap = self._heap
        while heap and heap[0][0] <= end_ns:
            self.now_ns, _, action, details = heapq.heappop(heap)
            self.done += 1
            action(*details)
        self.now_ns = end_ns
