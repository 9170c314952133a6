"""Room of replicas: how many requests a set of them could begin at once, which have room to spare, how many slots would
be given away, and how soon one becomes free.

A replica is counted again when a sum is asked for after a change, not at each change: every request changes one
replica, and few ask for a sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gateway.core.kernel.bits import LoadLevels, slots_of
from gateway.core.kernel.slots import EngineSlots


class _Replica(Protocol):
    slots: EngineSlots
    yielding: int
    backlog_bytes: int
    waiting: int
    kv_usage: float

    @property
    def load(self) -> int: ...

    @property
    def room(self) -> int: ...


class ReplicaRooms:
    """Room of each replica as last counted."""

    def __init__(self, replicas: Mapping[int, _Replica]) -> None:
        self._replicas = replicas
        """Replicas by slot."""
        self._rooms = LoadLevels()
        self._loads = LoadLevels()
        """Load of each replica without the requests that yield."""
        self._releases: dict[int, float] = {}
        """Requests that leave each replica per nanosecond while its slots are taken, by slot; 0: not known."""
        self.changed = 0
        """Mask of the replicas with any change since they were last counted."""
        self.free_share = 0.0
        """Share of an engine's room that batch requests leave free."""

    def remove(self, slot: int) -> None:
        self._rooms.remove(slot)
        self._loads.remove(slot)
        self._releases.pop(slot, None)
        self.changed &= ~(1 << slot)

    def total(self, mask: int) -> int:
        """Requests that replicas of the mask could begin at once; negative: none can begin one, and this many requests
        wait in their engines for a slot."""
        if self.changed:
            self._count()
        return self._rooms.total_above_zero(mask) or self._rooms.total(mask)

    def total_load(self, mask: int) -> int:
        """Requests at the replicas of the mask that do not yield. O(distinct loads)."""
        if self.changed:
            self._count()
        return self._loads.total(mask)

    def few_least_loaded(self, mask: int, count: int, first: int) -> list[int]:
        """Up to `count` slots of the mask with the fewest requests that do not yield; equal ones in order from slot
        `first` on, wrapping."""
        if self.changed:
            self._count()
        return self._loads.few(mask, count, first)

    def spare(self, mask: int) -> int:
        """Replicas of the mask that can each take one more batch request and keep `free_share` of their room free.
        O(replicas)."""
        found = 0
        for slot in slots_of(mask):
            if self.has_spare(slot):
                found |= 1 << slot
        return found

    def has_spare(self, slot: int) -> bool:
        """Return whether the replica can take one more batch request and still keep `free_share` of its room free."""
        state, free_share = self._replicas[slot], self.free_share
        if state.backlog_bytes or state.waiting:
            return False
        if not state.load:
            return True
        if state.kv_usage > 1 - free_share or state.room <= 0:
            return False
        total = state.slots.total
        return not total or (state.load + 1 <= (1 - free_share) * total and state.room - 1 >= free_share * total)

    def yielding(self, mask: int) -> int:
        """Slots of the replicas of the mask that an interactive request would be given at once. O(replicas)."""
        return sum([self._replicas[slot].yielding for slot in slots_of(mask)])

    def release_ns(self, mask: int) -> int:
        """Mean time between two requests leaving the replicas of the mask while all of their slots are taken; 0: not
        known."""
        if self.changed:
            self._count()
        releases = self._releases
        per_ns = sum([releases[slot] for slot in slots_of(mask)])
        return round(1 / per_ns) if per_ns else 0

    def _count(self) -> None:
        for slot in slots_of(self.changed):
            replica = self._replicas.get(slot)
            if replica is None:
                continue  # the last change was the end of a leg, after the replica had left
            self._rooms.put(slot, replica.room)
            self._loads.put(slot, replica.load - replica.yielding)
            release_ns = replica.slots.release_ns()
            self._releases[slot] = 1 / release_ns if release_ns else 0.0
        self.changed = 0
