"""Histories of disaggregated pools that this gateway offers to its controller, and when they are sent on one stream.
The schedule does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from gateway.core.vocabulary import GatewayId, Place
from mesh.control.pool_history import ROWS_MAX, PoolHistory

INTERVAL_NS = 60_000_000_000
"""Shortest interval of one pool's histories, but for short ones."""
POOLS_MAX = 64
"""Most pools whose histories one gateway sends."""


class HistoryOffer(Struct, frozen=True):
    """History of a pool that this gateway serves."""

    home: GatewayId
    pool: str
    """Name of the pool at its home."""
    added: int
    """Requests ever recorded: the history is new where this has changed."""
    make: Callable[[], PoolHistory]


class HistorySchedule:
    """Histories sent on one stream. The first of each pool is sent at once, since the controller may be another one. A
    short one is sent again whenever it has doubled: an adopter could not fit to the first few requests."""

    def __init__(self) -> None:
        self.place: Place | None = None
        """Place of a controller that takes histories; None until it has said so."""
        self._sent: dict[tuple[GatewayId, str], tuple[int, int]] = {}
        """Requests ever recorded in the last history of each pool, and the time at which it was sent."""

    def due(self, offers: Iterable[HistoryOffer], now_ns: int) -> list[HistoryOffer]:
        """Return the offers to send now, and count them as sent."""
        there = {(each.home, each.pool): each for each in list(offers)[:POOLS_MAX]}
        self._sent = {pool: sent for pool, sent in self._sent.items() if pool in there}
        due = [each for pool, each in there.items() if self._is_due(each, self._sent.get(pool), now_ns)]
        self._sent |= {(each.home, each.pool): (each.added, now_ns) for each in due}
        return due

    def _is_due(self, offer: HistoryOffer, sent: tuple[int, int] | None, now_ns: int) -> bool:
        if sent is None:
            return offer.added > 0
        added, sent_ns = sent
        has_doubled = added < ROWS_MAX and offer.added >= 2 * added
        return offer.added != added and (has_doubled or now_ns >= sent_ns + INTERVAL_NS)
