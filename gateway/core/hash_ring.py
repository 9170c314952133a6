"""Consistent hashing over slots (SkyWalker-CH): a key keeps its target while the set of targets changes.

Points depend on names alone: who knows the same names builds the same ring, whatever the slot numbers. It never knows
who is available: that comes with each question.
"""

from __future__ import annotations

from bisect import bisect_left

from xxhash import xxh3_64_intdigest

_SLOT_BITS = 32
_SLOT_MASK = (1 << _SLOT_BITS) - 1


class HashRing:
    """A ring of `virtual_nodes` points per slot. Changes are collected and merged into it by the next question.

    A question costs a binary search and a walk over points of unavailable slots: points divided by available points, on
    average, and one turn of the ring at the very most. With a single slot to choose from there is no walk.
    """

    def __init__(self, virtual_nodes: int) -> None:
        assert virtual_nodes > 0
        self._virtual_nodes = virtual_nodes
        self._names: dict[int, str] = {}
        self._mask = 0
        self._points: list[int] = []
        """Ascending: a 64-bit hash above the slot's number, in one int."""
        self._placed: dict[int, str] = {}
        """Whose points are in the list."""
        self._settled = True

    def add(self, slot: int, name: str) -> None:
        """Put a slot on the ring under the stable name of its target; a slot that was there takes the new name."""
        assert 0 <= slot <= _SLOT_MASK
        self._names[slot] = name
        self._mask |= 1 << slot
        self._settled = False

    def remove(self, slot: int) -> None:
        """Take a slot off the ring, if it is there."""
        if self._names.pop(slot, None) is not None:
            self._mask ^= 1 << slot
            self._settled = False

    def owner(self, key: str, available: int) -> int | None:
        """The first slot in `available` at or after the key's point; None when no slot of the ring is available."""
        candidates = available & self._mask
        if not candidates & (candidates - 1):
            return candidates.bit_length() - 1 if candidates else None
        if not self._settled:
            self._settle()
        return self._walk(_hash(key, 0) << _SLOT_BITS, candidates)

    def _walk(self, start: int, candidates: int) -> int:
        points = self._points
        index = bisect_left(points, start)
        while True:
            slot = points[index if index < len(points) else index - len(points)] & _SLOT_MASK
            if candidates >> slot & 1:
                return slot
            index += 1

    def _settle(self) -> None:
        """Drop the points of those who left and hash the names of those who came; sorting what was sorted is cheap."""
        names, placed = self._names, self._placed
        gone = {slot: name for slot, name in placed.items() if names.get(slot) != name}
        come = {slot: name for slot, name in names.items() if placed.get(slot) != name}
        if gone:
            self._points = [point for point in self._points if point & _SLOT_MASK not in gone]
        for slot, name in come.items():
            self._points += [_hash(name, number) << _SLOT_BITS | slot for number in range(self._virtual_nodes)]
        self._points.sort()
        self._placed = dict(names)
        self._settled = True


def _hash(name: str, seed: int) -> int:
    return xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"), seed)
