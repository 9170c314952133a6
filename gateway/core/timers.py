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
_Entry = tuple[int, int, TimerKey]


class Timers:
    """At most one deadline per key; setting it again replaces it. O(log n) each, memory bounded by the live keys.

    Each key has one entry in the heap that stands for it, never later than its deadline. So a deadline that is put off,
    as that of whatever shows signs of life is again and again, is one number changed: its entry is put off when it
    comes up, and nobody is woken for it.
    """

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._live: dict[TimerKey, int] = {}
        self._entries: dict[TimerKey, _Entry] = {}
        """Those that stand for a key; all others in the heap are dead."""
        self._serial = 0

    def __len__(self) -> int:
        return len(self._live)

    def set(self, key: TimerKey, at_ns: int) -> None:
        self._live[key] = at_ns
        entry = self._entries.get(key)
        if entry is None or at_ns < entry[0]:
            heapq.heappush(self._heap, self._entry(key, at_ns))
            if len(self._heap) > 2 * len(self._live) + _SLACK:
                self._heap = list(self._entries.values())
                heapq.heapify(self._heap)

    def set_earlier(self, key: TimerKey, at_ns: int) -> None:
        """Set, unless an earlier deadline already stands."""
        if self._live.get(key, at_ns) >= at_ns:
            self.set(key, at_ns)

    def cancel(self, key: TimerKey) -> None:
        if self._live.pop(key, None) is not None:
            del self._entries[key]

    def next_ns(self) -> int | None:
        self._settle_top()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ns: int) -> Iterator[TimerKey]:
        """Take out each key whose time has come, earliest first; keys set meanwhile with a due time are included."""
        while True:
            self._settle_top()
            if not self._heap or self._heap[0][0] > now_ns:
                return
            _, _, key = heapq.heappop(self._heap)
            self.cancel(key)
            yield key

    def _entry(self, key: TimerKey, at_ns: int) -> _Entry:
        self._serial += 1
        entry = self._entries[key] = (at_ns, self._serial, key)
        return entry

    def _settle_top(self) -> None:
        """Drop the dead and put off the early, until the first entry is at its key's deadline."""
        heap = self._heap
        while heap:
            at_ns, serial, key = heap[0]
            standing = self._entries.get(key)
            if standing is None or standing[1] != serial:
                heapq.heappop(heap)
            elif self._live[key] != at_ns:
                heapq.heapreplace(heap, self._entry(key, self._live[key]))
            else:
                return
