"""That this controller leads, and until when it may act on that, by its own clock.

Whoever changes something in the world that another controller may change too asks here right before each such write: a
database that checks the fencing token refuses a deposed leader by itself, a DNS service does not. Nothing here waits,
and nothing here asks a store: whoever renews the lease says how long it lasts.
"""

from __future__ import annotations

from math import inf

from gateway.ground.clock import Clock

_SECOND_NS = 1_000_000_000


class LeaseOver(Exception):
    """This controller may not lead any more, or not for as long as a write may take. Nothing was written."""


class Lease:
    """One for as long as a controller leads. All calls come from one event loop's thread.

    It ends earlier here than at the store: time that passes while a machine sleeps counts (`Clock.boot_ns`), it is
    counted from before the store was asked, and a margin is taken off for what is on its way and for clocks that run
    apart.
    """

    def __init__(self, clock: Clock, token: int, ends_ns: int | None) -> None:
        """`ends_ns` is by `Clock.boot_ns`; None: for as long as this process lives, since nobody else can have the
        store before."""
        self._clock = clock
        self._token = token
        self._ends_ns = ends_ns
        self._is_anothers = False

    @property
    def token(self) -> int:
        """Of whoever leads later it is higher. To be written beside what is written, where that can be checked."""
        return self._token

    def left_s(self) -> float:
        """How long it lasts from now on; 0 when it is over, infinite where it has no end."""
        if self._ends_ns is None:
            return inf
        return max(0, self._ends_ns - self._clock.boot_ns()) / _SECOND_NS

    def over_s(self) -> float:
        """For how long it has been over; 0 while it lasts."""
        return 0 if self._ends_ns is None else max(0, self._clock.boot_ns() - self._ends_ns) / _SECOND_NS

    def check(self, needed_s: float = 0.0) -> None:
        """Before each write, with the longest that it may take: a request that is not answered by then has to be given
        up. Raises LeaseOver."""
        left_s = self.left_s()
        if left_s <= needed_s:
            raise LeaseOver(f"the lease lasts {left_s:.1f} s, and this may take {needed_s:.1f} s: another may lead")

    # For whoever renews it

    def renewed(self, ends_ns: int | None) -> None:
        """The store has just said that it is still ours. An answer that comes after the end is older than that."""
        if not self._is_anothers:
            self._ends_ns = ends_ns

    def rose(self, token: int) -> None:
        """The same lease, under a higher token."""
        assert token >= self._token, "tokens rise"
        self._token = token

    def end(self) -> None:
        """It is another's, or was given back: for good."""
        self._is_anothers = True
        self._ends_ns = self._clock.boot_ns()
