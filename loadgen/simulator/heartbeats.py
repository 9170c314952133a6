"""Heartbeats of peers in transit to one gateway, delivered one by one or in batches of those that arrive soon after one
another.

A batch is one action however many heartbeats it holds; their content is opaque here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

from gateway.core.vocabulary import LoadReport
from loadgen.simulator.agenda import Agenda

Arrival = tuple[int, LoadReport]
"""Arrival time and content of a heartbeat."""
_WHEN = itemgetter(0)


class HeartbeatQueue:
    """Queue of heartbeats in transit. A window opens when one arrives, and all that arrived by its end are delivered
    together, in order."""

    def __init__(self, agenda: Agenda, window_ns: int, take: Callable[[Sequence[Arrival]], None]) -> None:
        self._agenda = agenda
        self._window_ns = window_ns
        self._take = take
        self._coming: list[Arrival] = []
        """Heartbeats in transit, in the order in which they were sent."""
        self._close_ns: int | None = None

    def expect(self, report: LoadReport, at_ns: int) -> None:
        if not self._window_ns:
            self._agenda.at(at_ns, self._take, ((at_ns, report),))
            return
        self._coming.append((at_ns, report))
        if self._close_ns is None or at_ns + self._window_ns < self._close_ns:
            self._close_at(at_ns + self._window_ns)

    def forget(self) -> None:
        """Drop the heartbeats that have arrived, because no process of the gateway was there to receive them."""
        self._take_out_until(self._agenda.now_ns)
        self._open_next()

    def _open_next(self) -> None:
        """Open the window of the first heartbeat still in transit."""
        if self._coming:
            self._close_at(min(map(_WHEN, self._coming)) + self._window_ns)
        else:
            self._close_ns = None

    def _close_at(self, close_ns: int) -> None:
        if close_ns != self._close_ns:
            self._agenda.at(close_ns, self._close, close_ns)
        self._close_ns = close_ns

    def _close(self, close_ns: int) -> None:
        if close_ns != self._close_ns:
            return
        arrived = self._take_out_until(close_ns)
        self._open_next()
        self._take(arrived)

    def _take_out_until(self, end_ns: int) -> list[Arrival]:
        """Remove and return the heartbeats that arrived by `end_ns`, in order of arrival, and of sending if
        simultaneous."""
        arrived = [arrival for arrival in self._coming if arrival[0] <= end_ns]
        arrived.sort(key=_WHEN)
        self._coming = [arrival for arrival in self._coming if arrival[0] > end_ns]
        return arrived
