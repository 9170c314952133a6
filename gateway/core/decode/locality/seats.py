"""Which group of decode workers has which centroid, and who is near enough to a request to serve it: the locality band
(ELDR §4.3.2). Groups share what their ranks read, so a group has one centroid, and a worker that stands alone is one.

A seat stays with its group for as long as that is there, over new artifacts too. Whoever leaves takes its centroid out
of everybody's band, until somebody else joins.
"""

from __future__ import annotations

from gateway.core.bits import lowest_slot
from gateway.core.decode.books import Group, Worker
from gateway.core.decode.locality.nearness import UNIT, SignatureState
from gateway.core.decode.predictor import Facts

_BEYOND = 1 << 20


class Seats:
    """Of one pool."""

    def __init__(self) -> None:
        self.digest = ""
        """Of the artifact in force; empty: there is none."""
        self.clusters = 0
        self.counts = dict.fromkeys(SignatureState, 0)
        """Requests that were sent, by what became of their signatures."""
        self._seat_of: dict[str, int] = {}
        """By group. Some may have a seat that the artifact has no centroid for."""
        self._taken = 0
        """As a mask."""

    def take(self, digest: str, clusters: int) -> None:
        """Another artifact. Whoever was compared with the one before falls back."""
        self.digest = digest
        self.clusters = clusters

    @property
    def groups(self) -> int:
        return len(self._seat_of)

    @property
    def unseated(self) -> int:
        """Groups without a centroid: an artifact of as many clusters as there are groups gives each its own."""
        return sum([seat >= self.clusters for seat in self._seat_of.values()])

    def seat_of(self, group: str) -> int | None:
        """Which of the centroids is its own."""
        return self._seat_of.get(group)

    def join(self, group: str) -> None:
        if group not in self._seat_of:
            seat = lowest_slot(~self._taken & (self._taken + 1))
            self._taken |= 1 << seat
            self._seat_of[group] = seat

    def leave(self, group: str) -> None:
        """Its seat goes to whoever has none that counts, or to the next to join."""
        seat = self._seat_of.pop(group, None)
        if seat is None:
            return
        self._taken &= ~(1 << seat)
        beyond = [name for name, each in self._seat_of.items() if each >= self.clusters]
        if seat < self.clusters and beyond:
            moved = beyond[0]
            self._taken &= ~(1 << self._seat_of[moved])
            self._seat_of[moved] = seat
            self._taken |= 1 << seat

    # A request

    def state_of(self, facts: Facts) -> SignatureState:
        nearness = facts.nearness
        if nearness is None:
            return SignatureState.MISSING if self.digest else SignatureState.UNFITTED
        if nearness.state is SignatureState.USED:
            if not self.digest:
                return SignatureState.UNFITTED
            if nearness.artifact != self.digest or len(facts.cosines()) != self.clusters:
                return SignatureState.STALE
        return nearness.state

    def cosine(self, facts: Facts, group: Group) -> int:
        """In units of `UNIT`. A group without a centroid is near to everybody: it takes what others have no room for,
        rather than nothing."""
        seat = self._seat_of.get(group.name, _BEYOND)
        cosines = facts.cosines()
        return cosines[seat] if seat < len(cosines) else UNIT

    def band(self, facts: Facts, workers: list[Worker], width: float) -> list[Worker] | None:
        """Of those that may be sent it, the ones whose centroids are within `width` of the nearest one's. None: nothing
        tells who is near."""
        if self.state_of(facts) is not SignatureState.USED:
            return None
        cosines = facts.cosines()
        clusters = len(cosines)
        seats = [self._seat_of.get(worker.group.name, _BEYOND) for worker in workers]
        nearest = max([cosines[seat] for seat in seats if seat < clusters], default=-UNIT)
        least = nearest - round(width * UNIT)
        return [
            worker for worker, seat in zip(workers, seats, strict=True) if seat >= clusters or cosines[seat] >= least
        ]
