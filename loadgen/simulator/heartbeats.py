"""What peers say of themselves, on its way to one gateway: one by one, or together with what comes in soon after.

A batch is one thing to do however many heartbeats are in it; nothing here knows what they say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

from gateway.core.vocabulary import LoadReport
from loadgen.simulator.agenda import Agenda

Arrival = tuple[int, LoadReport]
"""When it comes in, and what it says."""
_WHEN = itemgetter(0)


class Heartbeats:
    """A window opens when a heartbeat comes in, and all that came by its end are handed over together, in order."""

    def __init__(self, agenda: Agenda, window_ns: int, take: Callable[[Sequence[Arrival]], None]) -> None:
        self._agenda = agenda
        self._window_ns = window_ns
        self._take = take
        self._coming: list[Arrival] = []
        """In the order in which they were sent."""
        self._close_ns: int | None = None

    def expect(self, report: LoadReport, at_ns: int) -> None:
        if not self._window_ns:
            self._agenda.at(at_ns, self._take, ((at_ns, report),))
            return
        self._coming.append((at_ns, report))
        if self._close_ns is None or at_ns + self._window_ns < self._close_ns:
            self._close_at(at_ns + self._window_ns)

    def forget(self) -> None:
        """Nobody was there for what has come in so far."""
        self._take_out_until(self._agenda.now_ns)
        self._open_next()

    def _open_next(self) -> None:
        """The window of the first that is still on its way."""
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
        """What came in by then, in order; of two at the same time, what was sent first."""
        arrived = [arrival for arrival in self._coming if arrival[0] <= end_ns]
        arrived.sort(key=_WHEN)
        self._coming = [arrival for arrival in self._coming if arrival[0] > end_ns]
        return arrived
