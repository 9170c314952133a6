"""The controller's right to lead, and the time until which it may act on it, by its own clock.

Code that changes external state which another controller may change too checks the lease right before each such write:
a database that checks the fencing token refuses a deposed leader by itself, a DNS service does not. The lease waits for
nothing and asks no store: each renewal is reported to it.
"""

from __future__ import annotations

from math import inf

from mesh.clock import Clock

_SECOND_NS = 1_000_000_000


class LeaseOver(Exception):
    """The controller may not lead, or not for as long as a write may take. Nothing was written."""


class Lease:
    """Lease of a controller for as long as it leads. All calls come from one event loop's thread.

    The lease ends earlier here than at the store: time that passes while a machine sleeps counts (`Clock.boot_ns`), it
    is counted from before the store was asked, and a margin is taken off for messages under way and for clock drift.
    """

    def __init__(self, clock: Clock, token: int, ends_ns: int | None) -> None:
        """`ends_ns` is by `Clock.boot_ns`; None: for as long as this process lives, since no other controller can have
        the store before."""
        self._clock = clock
        self._token = token
        self._ends_ns = ends_ns
        self._is_anothers = False

    @property
    def token(self) -> int:
        """Fencing token; a later leader's is higher. It is written beside the data, where it can be checked there."""
        return self._token

    def left_s(self) -> float:
        """Return the seconds left; 0 when the lease is over, infinite where it has no end."""
        if self._ends_ns is None:
            return inf
        return max(0, self._ends_ns - self._clock.boot_ns()) / _SECOND_NS

    def over_s(self) -> float:
        """Return the seconds since the end; 0 while the lease lasts."""
        return 0 if self._ends_ns is None else max(0, self._clock.boot_ns() - self._ends_ns) / _SECOND_NS

    def check(self, needed_s: float = 0.0) -> None:
        """Check before a write that the lease lasts for `needed_s`, the longest that the write may take: a request that
        is not answered by then has to be given up. Raises LeaseOver."""
        left_s = self.left_s()
        if left_s <= needed_s:
            raise LeaseOver(f"the lease lasts {left_s:.1f} s, and this may take {needed_s:.1f} s: another may lead")

    # Renewal

    def renewed(self, ends_ns: int | None) -> None:
        """Prolong the lease: the store has just confirmed it. A confirmation that comes after `end` is older than that,
        and ignored."""
        if not self._is_anothers:
            self._ends_ns = ends_ns

    def rose(self, token: int) -> None:
        """Note the higher token of the same lease."""
        assert token >= self._token, "tokens rise"
        self._token = token

    def end(self) -> None:
        """End the lease for good: another controller holds the store, or it was given back."""
        self._is_anothers = True
        self._ends_ns = self._clock.boot_ns()
