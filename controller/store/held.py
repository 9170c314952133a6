"""When somebody else's holding of a shared store has ended: by our own clock, and by nobody else's.

Clocks of other machines are never compared. Whoever has the store changes a count there with each renewal; whoever
waits for its end sees that the count has not changed for as long as a holding lasts. So neither a database whose clock
is set, nor one that fails over to a machine with another time, ends or prolongs a holding.
"""

from __future__ import annotations

from gateway.core.value import value


@value
class Mark:
    """What a store says of whoever has it; with each renewal it is another one."""

    token: int
    key: str
    renewals: int


class Watch:
    """Of one store, by one who waits for it. All times are by our own clock, which goes on while the machine sleeps."""

    def __init__(self) -> None:
        self._seen: Mark | None = None
        self._since_ns = 0
        self._last_ns = 0
        """When the store last answered."""

    def has_ended(self, mark: Mark, lease_ns: int, *, asked_ns: int, answered_ns: int) -> bool:
        """The store was asked and answered then. What was seen first is as old as its answer, what is seen now as
        young as its question: between the two nothing was renewed.

        While the store does not answer, whoever has it may not be able to renew it either. So with half a lease between
        two answers it begins anew; a look or two that fail are no reason.
        """
        was_away = answered_ns - self._last_ns > lease_ns // 2
        self._last_ns = answered_ns
        if mark != self._seen or was_away:
            self._seen, self._since_ns = mark, answered_ns
            return False
        return asked_ns - self._since_ns >= lease_ns


def lease_end_ns(asked_ns: int, lease_ns: int, margin_ns: int) -> int:
    """Until when whoever asked for a lease then, or renewed it, may act on it. Others count from when they first see
    it, which is later; the margin is for what is on its way, and for clocks that run apart."""
    return asked_ns + lease_ns - margin_ns
