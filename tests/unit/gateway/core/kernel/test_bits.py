from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.kernel.bits import LoadLevels, lowest_slot, next_slot_from, select_slot, slots_of

SLOTS = st.sets(st.integers(0, 5000), min_size=1, max_size=40).map(sorted)


def mask_of(slots: list[int]) -> int:
    return sum(1 << slot for slot in slots)


@given(SLOTS)
def test_slots_come_back_ascending(slots: list[int]) -> None:
    assert list(slots_of(mask_of(slots))) == slots
    assert lowest_slot(mask_of(slots)) == slots[0]


@given(SLOTS, st.integers(0, 5001))
def test_the_next_slot_wraps_around(slots: list[int], start: int) -> None:
    expected = next((slot for slot in slots if slot >= start), slots[0])
    assert next_slot_from(mask_of(slots), start) == expected


@given(SLOTS)
def test_every_slot_can_be_selected_by_rank(slots: list[int]) -> None:
    assert [select_slot(mask_of(slots), rank) for rank in range(len(slots))] == slots


def test_a_full_mask_selects_by_identity() -> None:
    full = (1 << 4096) - 1
    assert [select_slot(full, k) for k in (0, 1, 2047, 2048, 4095)] == [0, 1, 2047, 2048, 4095]
    assert len(list(slots_of(full))) == 4096


def test_an_empty_mask_has_no_slots() -> None:
    assert list(slots_of(0)) == []
    with pytest.raises(AssertionError):
        lowest_slot(0)
    with pytest.raises(AssertionError):
        next_slot_from(0, 3)
    with pytest.raises(AssertionError):
        select_slot(0b101, 2)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), min_size=1), st.integers(1, 2**21 - 1))
def test_the_least_loaded_of_a_mask_are_found_without_looking_at_each(
    changes: list[tuple[int, int]], mask: int
) -> None:
    levels, plain = LoadLevels(), dict[int, int]()
    for slot, load in changes:
        levels.put(slot, load)
        plain[slot] = load
    known = [slot for slot in slots_of(mask) if slot in plain]
    lowest = min((plain[slot] for slot in known), default=None)
    assert list(slots_of(levels.least(mask))) == [slot for slot in known if plain[slot] == lowest]
