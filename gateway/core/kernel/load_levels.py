"""Slots grouped by load."""

from __future__ import annotations

from bisect import bisect_left, insort


class LoadLevels:
    """Slots grouped by load: the least loaded of any mask in O(distinct loads), whatever the number of slots."""

    def __init__(self) -> None:
        self._mask_at: dict[int, int] = {}
        self._loads: list[int] = []
        self._load_of: dict[int, int] = {}

    def put(self, slot: int, load: int) -> None:
        if self._load_of.get(slot) == load:
            return
        self.remove(slot)
        self._load_of[slot] = load
        if load not in self._mask_at:
            insort(self._loads, load)
            self._mask_at[load] = 0
        self._mask_at[load] |= 1 << slot

    def remove(self, slot: int) -> None:
        load = self._load_of.pop(slot, None)
        if load is None:
            return
        self._mask_at[load] &= ~(1 << slot)
        if not self._mask_at[load]:
            del self._mask_at[load]
            del self._loads[bisect_left(self._loads, load)]

    def total(self, mask: int) -> int:
        """Sum of the loads of the slots in the mask."""
        return sum([load * (slots & mask).bit_count() for load, slots in self._mask_at.items()])

    def at_zero(self, mask: int) -> int:
        return self._mask_at.get(0, 0) & mask

    def least(self, mask: int) -> int:
        """Mask of the slots of `mask` that share the lowest load; 0 when none of them has a known load."""
        for load in self._loads:
            if found := self._mask_at[load] & mask:
                return found
        return 0
