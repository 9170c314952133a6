"""Functions over a set of slots held as one int (bit i set: slot i is in the set). They never change their
arguments."""

from __future__ import annotations

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


def slots_of(mask: int) -> Iterator[int]:
    """Slots of the mask in ascending order, in time linear in the mask's width plus its slots."""
    assert mask >= 0, "a mask is never negative"
    digits = bin(mask)
    last = len(digits) - 1
    position = digits.rfind("1")
    while position >= 0:
        yield last - position
        position = digits.rfind("1", 0, position)
