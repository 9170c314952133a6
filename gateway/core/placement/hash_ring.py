"""Consistent hashing over slots (SkyWalker-CH): a key keeps its target while the set of targets changes.

Points depend on names alone, so gateways that know the same names build the same ring, whatever their slot numbers. The
ring does not know which targets are available; each look-up is given that.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

_STRIDE_FIRST = 16
"""Points looked at one by one before whole stretches of the ring are."""


class HashRing:
    """Ring of `virtual_nodes` points per slot. Changes are collected, and merged into it by the next look-up.

    A look-up costs a binary search and a walk past the points of unavailable slots: slots divided by available slots,
    on average, and one turn of the ring at most. A long walk takes strides that double, without a step of its own for
    each point; with a single slot to choose from there is no walk at all.
    """

    def __init__(self, virtual_nodes: int) -> None:
        assert virtual_nodes > 0, "a slot has at least one point"
        self._virtual_nodes = virtual_nodes
        self._names: dict[int, str] = {}
        self._mask = 0
        self._settled = True
        self._placed: dict[int, str] = {}
        """Slots and names whose points are on the ring, as of the last look-up."""
        self._points: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        """Points, ascending."""
        self._slots: npt.NDArray[np.uint32] = np.empty(0, np.uint32)
        """Slot of each point."""

    def add(self, slot: int, name: str) -> None:
        """Put a slot on the ring under the stable name of its target; a slot already there takes the new name."""
        self._names[slot] = name
        self._mask |= 1 << slot
        self._settled = False

    def remove(self, slot: int) -> None:
        """Remove a slot from the ring, if it is there."""
        if self._names.pop(slot, None) is not None:
            self._mask ^= 1 << slot
            self._settled = False

    def resize(self, virtual_nodes: int) -> None:
        """Give every slot this number of points from the next look-up on."""
        if virtual_nodes != self._virtual_nodes:
            self._virtual_nodes = virtual_nodes
            self._points, self._slots, self._placed = self._points[:0], self._slots[:0], {}
            self._settled = False

    def owner(self, key: str, available: int) -> int | None:
        """First slot in `available` at or after the key's point; None when no slot of the ring is available."""
        candidates = available & self._mask
        if not candidates & (candidates - 1):
            return candidates.bit_length() - 1 if candidates else None
        if not self._settled:
            self._settle()
        return self._walk(int(self._points.searchsorted(np.uint64(_key_point(key)))), candidates)

    def _walk(self, start: int, candidates: int) -> int:
        nearest: list[int] = self._slots[start : start + _STRIDE_FIRST].tolist()
        for slot in nearest:
            if candidates >> slot & 1:
                return slot
        is_candidate = _as_flags(candidates)
        stride = _STRIDE_FIRST
        while True:
            start = start + stride if start + stride < len(self._slots) else 0
            stride *= 2
            slots = self._slots[start : start + stride]
            found = is_candidate.take(slots, mode="clip")
            first = int(found.argmax())
            if found[first]:
                return int(slots[first])

    def _settle(self) -> None:
        """Bring the points up to date, hashing only new names."""
        placed, names = self._placed, self._names
        left = [slot for slot in placed if names.get(slot) != placed[slot]]
        came = [slot for slot in names if placed.get(slot) != names[slot]]
        stays = ~np.isin(self._slots, np.array(left, np.uint32))
        new_points = [point for slot in came for point in _points_of(names[slot], self._virtual_nodes)]
        points = np.concatenate([self._points[stays], np.array(new_points, np.uint64)])
        slots = np.concatenate([self._slots[stays], np.repeat(np.array(came, np.uint32), self._virtual_nodes)])
        order = np.argsort(points, kind="stable")
        self._points, self._slots = points[order], slots[order]
        self._placed = dict(names)
        self._settled = True


def _as_flags(mask: int) -> npt.NDArray[np.uint8]:
    """Flags of a mask, one element per slot up to the highest in it, and at least one 0 beyond."""
    raw = mask.to_bytes(mask.bit_length() // 8 + 1, "little")
    return np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little")


def _points_of(name: str, count: int) -> Iterator[int]:
    """Points of a name. The number goes into the hashed bytes: as a seed it would let short names that differ in a
    digit collide."""
    raw = name.encode("utf-8", "surrogatepass")
    return (xxh3_64_intdigest(raw + number.to_bytes(4, "big")) for number in range(count))


def _key_point(key: str) -> int:
    return xxh3_64_intdigest(key.encode("utf-8", "surrogatepass"))
