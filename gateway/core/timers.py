"""Deadlines by key in one heap, so that a core asks its driver for a single wake-up. It never reads a clock."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from gateway.core.vocabulary import Word

_SLACK = 64


class TimerKind(Word):
    REQUEST = "request"
    REPLICA = "replica"
    PEER = "peer"
    PUBLISH = "publish"


TimerKey = tuple[TimerKind, str]


class Timers:
    """At most one deadline per key; setting it again replaces it. O(log n) each, memory bounded by the live keys."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, TimerKey]] = []
        self._live: dict[TimerKey, int] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._live)

    def set(self, key: TimerKey, at_ns: int) -> None:
        if self._live.get(key) == at_ns:
            return
        self._live[key] = at_ns
        self._serial += 1
        heapq.heappush(self._heap, (at_ns, self._serial, key))
        if len(self._heap) > 2 * len(self._live) + _SLACK:
            self._compact()

    def set_earlier(self, key: TimerKey, at_ns: int) -> None:
        """Set, unless an earlier deadline already stands."""
        if self._live.get(key, at_ns) >= at_ns:
            self.set(key, at_ns)

    def cancel(self, key: TimerKey) -> None:
        self._live.pop(key, None)

    def next_ns(self) -> int | None:
        self._drop_dead_top()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ns: int) -> Iterator[TimerKey]:
        """Take out each key whose time has come, earliest first; keys set meanwhile with a due time are included."""
        while True:
            self._drop_dead_top()
            if not self._heap or self._heap[0][0] > now_ns:
                return
            _, _, key = heapq.heappop(self._heap)
            del self._live[key]
            yield key

    def _drop_dead_top(self) -> None:
        while self._heap and self._live.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)

    def _compact(self) -> None:
        entries = [entry for entry in self._heap if self._live.get(entry[2]) == entry[0]]
        seen: set[TimerKey] = set()
        self._heap = []
        for entry in entries:
            if entry[2] not in seen:
                seen.add(entry[2])
                self._heap.append(entry)
        heapq.heapify(self._heap)
