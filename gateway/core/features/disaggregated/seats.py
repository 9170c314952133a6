"""Seats: the assignment of centroids to groups of decode workers, and the locality band, i.e. the workers near enough
to a request (ELDR §4.3.2). Ranks of a group share the experts that they read, so a group has one centroid; a worker
without a group is a group of its own.

A group with a centroid keeps its seat as long as it exists, also over new artifacts. When a group leaves, its centroid
belongs to no band until another group takes the seat.
"""

from __future__ import annotations

from gateway.core.features.disaggregated.books import Group, Worker
from gateway.core.features.disaggregated.predictor import Facts
from gateway.core.kernel.bits import lowest_slot
from gateway.core.nearness import UNIT, SignatureState

_BEYOND = 1 << 20


class Seats:
    """Seats of one pool."""

    def __init__(self) -> None:
        self.digest = ""
        """Digest of the artifact in force; empty: there is none."""
        self.clusters = 0
        self.counts = dict.fromkeys(SignatureState, 0)
        """Requests sent, by the state of their signature."""
        self._seat_of: dict[str, int] = {}
        """Seat of each group. A seat may exceed the artifact's number of centroids."""
        self._taken = 0
        """Mask of the seats in use."""

    def take(self, digest: str, clusters: int) -> None:
        """Switch to another artifact. Requests compared with the previous one become stale."""
        self.digest = digest
        self.clusters = clusters

    @property
    def groups(self) -> int:
        return len(self._seat_of)

    @property
    def unseated(self) -> int:
        """Number of groups without a centroid; 0 if the artifact has as many clusters as there are groups."""
        return sum([seat >= self.clusters for seat in self._seat_of.values()])

    def seat_of(self, group: str) -> int | None:
        """Index of the group's centroid; None: the group is unknown."""
        return self._seat_of.get(group)

    def join(self, group: str) -> None:
        if group not in self._seat_of:
            seat = lowest_slot(~self._taken & (self._taken + 1))
            self._taken |= 1 << seat
            self._seat_of[group] = seat

    def leave(self, group: str) -> None:
        """Remove a group. Its seat goes to a group without a centroid, else to the next group that joins."""
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
        """Cosine of the request and the group's centroid, in units of `UNIT`. A group without a centroid counts as near
        to every request, so that it takes requests that other groups have no room for."""
        seat = self._seat_of.get(group.name, _BEYOND)
        cosines = facts.cosines()
        return cosines[seat] if seat < len(cosines) else UNIT

    def band(self, facts: Facts, workers: list[Worker], width: float) -> list[Worker] | None:
        """Workers whose centroids are within `width` of the nearest one's, of `workers`, which may take the request.
        None: the request has no usable signature."""
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
