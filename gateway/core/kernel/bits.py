"""Sets of slots held as one int (bit i set: slot i is in the set). The functions never change their arguments."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator


def lowest_slot(mask: int) -> int:
    """Smallest slot in a mask, which must not be empty."""
    assert mask > 0, "an empty mask has no slot"
    return (mask & -mask).bit_length() - 1


def next_slot_from(mask: int, start: int) -> int:
    """Smallest slot at or after `start`, or else the smallest of all: one step of a round robin."""
    ahead = mask >> start
    return start + lowest_slot(ahead) if ahead else lowest_slot(mask)


def select_slot(mask: int, k: int) -> int:
    """Slot at rank k in ascending order, counted from 0, in O(log n) operations on the mask: a random pick needs no
    list."""
    assert 0 <= k < mask.bit_count(), "fewer slots than asked for"
    base, width = 0, mask.bit_length()
    while width > 1:
        half = width >> 1
        low = mask & ((1 << half) - 1)
        count = low.bit_count()
        if k < count:
            mask, width = low, half
        else:
            mask, width = mask >> half, width - half
            k -= count
            base += half
    return base


def with_bit(mask: int, bit: int, *, is_set: bool) -> int:
    """Mask with this bit set, or without it."""
    return mask | bit if is_set else mask & ~bit


def slots_of(mask: int) -> Iterator[int]:
    """Slots of the mask in ascending order, in time linear in the mask's width plus its slots."""
    assert mask >= 0, "a mask is never negative"
    digits = bin(mask)
    last = len(digits) - 1
    position = digits.rfind("1")
    while position >= 0:
        yield last - position
        position = digits.rfind("1", 0, position)


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

    def total_above_zero(self, mask: int) -> int:
        """Sum of those loads of the slots in the mask that are positive."""
        return sum([load * (slots & mask).bit_count() for load, slots in self._mask_at.items() if load > 0])

    def at_zero(self, mask: int) -> int:
        return self._mask_at.get(0, 0) & mask

    def few(self, mask: int, count: int, first: int = 0) -> list[int]:
        """Up to `count` slots of `mask`, the least loaded first; equally loaded ones in order from slot `first` on,
        wrapping."""
        few: list[int] = []
        while mask and len(few) < count:
            level = self.least(mask)
            if not level:
                break
            mask &= ~level
            while level and len(few) < count:
                slot = next_slot_from(level, first)
                level ^= 1 << slot
                few.append(slot)
        return few

    def least(self, mask: int) -> int:
        """Mask of the slots of `mask` that share the lowest load; 0 when none of them has a known load."""
        for load in self._loads:
            if found := self._mask_at[load] & mask:
                return found
        return 0
