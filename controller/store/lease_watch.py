"""End of another controller's holding of a shared store, found by this machine's clock alone.

Clocks of other machines are never compared. The holder changes a count in the store with each renewal; a standby
controller finds the holding ended once the count has stayed the same for the length of a holding. So neither a database
whose clock is set, nor one that fails over to a machine with another time, ends or prolongs a holding.
"""

from __future__ import annotations

from msgspec import Struct


class LeaseMark(Struct, frozen=True):
    """Identity of a store's holding; each renewal changes it."""

    token: int
    key: str
    renewals: int


class LeaseWatch:
    """Observes one store for a controller that waits for it. Times are of this machine's clock, which goes on while the
    machine sleeps."""

    def __init__(self) -> None:
        self._seen: LeaseMark | None = None
        self._since_ns = 0
        self._last_ns = 0
        """Time at which the store last answered."""

    def has_ended(self, mark: LeaseMark, lease_ns: int, *, asked_ns: int, answered_ns: int) -> bool:
        """Return whether the holding has ended, by an answer of the store and the times of query and answer. A mark
        that stays the same was not renewed from the answer that first showed it until the latest query.

        While the store does not answer, its holder may be unable to renew as well. So the wait begins anew after half a
        lease without an answer; one or two queries that fail do not matter.
        """
        was_away = answered_ns - self._last_ns > lease_ns // 2
        self._last_ns = answered_ns
        if mark != self._seen or was_away:
            self._seen, self._since_ns = mark, answered_ns
            return False
        return asked_ns - self._since_ns >= lease_ns


def lease_end_ns(asked_ns: int, lease_ns: int, margin_ns: int) -> int:
    """Time until which a controller that requested or renewed a lease at `asked_ns` may act on it. Other controllers
    count from when they first see the renewal, which is later; the margin covers messages under way and clock drift."""
    return asked_ns + lease_ns - margin_ns
