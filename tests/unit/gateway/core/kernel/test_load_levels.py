"""Least loaded slots of any mask."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.kernel.bits import slots_of
from gateway.core.kernel.load_levels import LoadLevels


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
