"""Timers of a core, kept in one heap so that the core asks its driver for a single wake-up. It never reads a clock."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from gateway.core.vocabulary import Word

_SLACK = 16
"""Dead entries tolerated in a heap however few timers are set; each keeps its timer alive."""
_NEVER = 1 << 61
"""Largest deadline; still an int that a compiled timer holds by value."""


class TimerKind(Word):
    REQUEST = "request"
    REPLICA = "replica"
    PEER = "peer"
    PUBLISH = "publish"
    FEATURE = "feature"
    """Timer of an optional feature, by the name that it gives it."""


class Timer:
    """The single deadline of one object, which holds its timer, so that setting it needs no look-up. Only `Timers`
    changes it."""

    __slots__ = ("at_ns", "entry_ns", "entry_serial", "id", "kind")

    def __init__(self, kind: TimerKind, of: str) -> None:
        self.kind = kind
        self.id = of
        self.at_ns = _NEVER
        self.entry_ns = _NEVER
        """Deadline of the heap entry; never later than `at_ns`."""
        self.entry_serial = 0
        """Serial number of the heap entry that represents the timer; 0: none does."""


_Entry = tuple[int, int, Timer]


class Timers:
    """Deadlines of one core. Setting a timer again replaces its deadline. O(log n) each, memory bounded by the number
    of timers that are set.

    Each timer that is set has one live entry in the heap, never later than its deadline. Postponing a deadline, as
    happens constantly with staleness timers, therefore only changes a number: the entry is postponed when it reaches
    the top, and causes no wake-up.
    """

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        """Heap of entries; an entry that represents no timer is dead."""
        self._set = 0
        self._serial = 0

    def __len__(self) -> int:
        return self._set

    def set(self, timer: Timer, at_ns: int) -> None:
        assert at_ns < _NEVER, "no clock comes that far"
        if timer.at_ns == _NEVER:
            self._set += 1
        timer.at_ns = at_ns
        if at_ns < timer.entry_ns:
            self._serial = timer.entry_serial = self._serial + 1  # the same as `_entry`, without a call
            timer.entry_ns = at_ns
            heapq.heappush(self._heap, (at_ns, self._serial, timer))
            if len(self._heap) > 2 * self._set + _SLACK:
                self._heap = [entry for entry in self._heap if entry[2].entry_serial == entry[1]]
                heapq.heapify(self._heap)

    def set_earlier(self, timer: Timer, at_ns: int) -> None:
        """Set the timer, unless it already has an earlier deadline."""
        if at_ns <= timer.at_ns:
            self.set(timer, at_ns)

    def cancel(self, timer: Timer) -> None:
        if timer.at_ns != _NEVER:
            self._set -= 1
            timer.at_ns = timer.entry_ns = _NEVER
            timer.entry_serial = 0

    def next_ns(self) -> int | None:
        heap = self._heap
        if not heap:
            return None
        at_ns, serial, timer = heap[0]
        if timer.entry_serial == serial and timer.at_ns == at_ns:
            return at_ns
        self._settle_top()
        return heap[0][0] if heap else None

    def may_be_due(self, now_ns: int) -> bool:
        """Return whether `pop_due` may find a timer; False is certain."""
        return bool(self._heap) and self._heap[0][0] <= now_ns

    def pop_due(self, now_ns: int) -> Iterator[Timer]:
        """Remove and yield each due timer, earliest first, including timers set meanwhile with a due time."""
        while True:
            self._settle_top()
            if not self._heap or self._heap[0][0] > now_ns:
                return
            _, _, timer = heapq.heappop(self._heap)
            self.cancel(timer)
            yield timer

    def _entry(self, timer: Timer) -> _Entry:
        self._serial += 1
        timer.entry_ns = timer.at_ns
        timer.entry_serial = self._serial
        return timer.at_ns, self._serial, timer

    def _settle_top(self) -> None:
        """Drop dead entries and postpone early ones until the first entry is at its timer's deadline."""
        heap = self._heap
        while heap:
            at_ns, serial, timer = heap[0]
            if timer.entry_serial != serial:
                heapq.heappop(heap)
            elif timer.at_ns != at_ns:
                heapq.heapreplace(heap, self._entry(timer))
            else:
                return
