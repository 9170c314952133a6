"""What peers say of themselves, on its way to one gateway: one by one, or together with what comes in soon after.

A batch is one thing to do however many heartbeats are in it; nothing here knows what they say.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from gateway.core.vocabulary import LoadReport
from loadgen.simulator.agenda import Agenda

Arrival = tuple[int, LoadReport]
"""When it comes in, and what it says."""


class Heartbeats:
    """A window opens when a heartbeat comes in, and all that came by its end are handed over together, in order."""

    def __init__(self, agenda: Agenda, window_ns: int, take: Callable[[Sequence[Arrival]], None]) -> None:
        self._agenda = agenda
        self._window_ns = window_ns
        self._take = take
        self._coming: list[tuple[int, int, LoadReport]] = []
        self._serial = 0
        self._close_ns: int | None = None

    def expect(self, report: LoadReport, at_ns: int) -> None:
        if not self._window_ns:
            self._agenda.at(at_ns, self._take, ((at_ns, report),))
            return
        self._serial += 1
        heapq.heappush(self._coming, (at_ns, self._serial, report))
        if self._close_ns is None or at_ns + self._window_ns < self._close_ns:
            self._arm()

    def forget(self) -> None:
        """Nobody was there for what has come in so far."""
        self._pop_until(self._agenda.now_ns)
        self._arm()

    def _arm(self) -> None:
        close_ns = self._coming[0][0] + self._window_ns if self._coming else None
        if close_ns is not None and close_ns != self._close_ns:
            self._agenda.at(close_ns, self._close, close_ns)
        self._close_ns = close_ns

    def _close(self, close_ns: int) -> None:
        if close_ns != self._close_ns:
            return
        arrived = self._pop_until(close_ns)
        self._arm()
        self._take(arrived)

    def _pop_until(self, end_ns: int) -> list[Arrival]:
        coming = self._coming
        arrived = []
        while coming and coming[0][0] <= end_ns:
            at_ns, _, report = heapq.heappop(coming)
            arrived.append((at_ns, report))
        return arrived
