from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.placement.hash_ring import HashRing, _key_point, _points_of

KEYS = [f"user-{number}" for number in range(2000)]
EVERYBODY = (1 << 64) - 1


def ring_of(names: dict[int, str], virtual_nodes: int = 160) -> HashRing:
    ring = HashRing(virtual_nodes)
    for slot, name in names.items():
        ring.add(slot, name)
    return ring


def owners(ring: HashRing, names: dict[int, str], available: int = EVERYBODY) -> dict[str, str]:
    found = {key: ring.owner(key, available) for key in KEYS}
    return {key: names[slot] for key, slot in found.items() if slot is not None}


def test_short_names_share_no_points() -> None:
    """A weak mixer would map seeds that are small numbers, or names that differ in one digit, to the same points."""
    points = [point for name in ("a0", "a1", "a6", "gw-1", "gw-2") for point in _points_of(name, 160)]
    assert len(set(points)) == len(points)


def names_of(count: int) -> dict[int, str]:
    return {slot: f"replica-{slot}" for slot in range(count)}


def test_keys_spread_evenly() -> None:
    counts = Counter(owners(ring_of(names_of(8)), names_of(8)).values())
    assert len(counts) == 8
    assert all(0.6 < count / (len(KEYS) / 8) < 1.4 for count in counts.values())


def test_a_newcomer_only_takes() -> None:
    ring, names = ring_of(names_of(8)), names_of(9)
    before = owners(ring, names)
    ring.add(8, names[8])
    after = owners(ring, names)
    moved = {key for key in KEYS if before[key] != after[key]}
    assert {after[key] for key in moved} == {"replica-8"}
    assert 0.5 < len(moved) / (len(KEYS) / 9) < 1.5


def test_only_the_keys_of_one_that_left_move() -> None:
    ring, names = ring_of(names_of(8)), names_of(8)
    before = owners(ring, names)
    ring.remove(3)
    after = owners(ring, names)
    assert {key for key in KEYS if before[key] != after[key]} == {key for key in KEYS if before[key] == "replica-3"}
    assert "replica-3" not in after.values()


def test_an_unavailable_slot_is_passed_over_as_if_it_had_left() -> None:
    ring, names = ring_of(names_of(8)), names_of(8)
    while_away = owners(ring, names, EVERYBODY ^ 0b101000)
    ring.remove(3)
    ring.remove(5)
    assert owners(ring, names) == while_away


def test_names_decide_and_slots_do_not() -> None:
    names = names_of(20)
    moved = {19 - slot: name for slot, name in names.items()}
    assert owners(ring_of(names), names) == owners(ring_of(moved), moved)


def test_a_slot_can_change_hands() -> None:
    names = names_of(5)
    ring = ring_of(names)
    owners(ring, names)
    ring.remove(2)
    ring.add(2, "stranger")
    names[2] = "stranger"
    assert owners(ring, names) == owners(ring_of(names), names)


def test_owners_are_the_same_on_every_machine() -> None:
    ring = ring_of(names_of(5))
    assert [ring.owner(key, EVERYBODY) for key in KEYS[:12]] == [2, 0, 2, 3, 2, 3, 3, 3, 1, 2, 4, 0]


def test_nobody_owns_anything_when_nobody_is_there() -> None:
    ring = HashRing(10)
    assert ring.owner("key", EVERYBODY) is None
    ring.add(4, "replica-4")
    assert ring.owner("key", EVERYBODY ^ 1 << 4) is None
    assert ring.owner("key", 1 << 4) == 4
    ring.remove(4)
    assert ring.owner("key", EVERYBODY) is None
    ring.remove(4)


def test_a_key_may_hold_any_string() -> None:
    assert ring_of(names_of(3)).owner("\ud800", EVERYBODY) in range(3)


CHANGES = st.lists(st.tuples(st.integers(0, 7), st.sampled_from(["a", "b", "c", None])), max_size=30)


@given(CHANGES, st.integers(0, 255), st.lists(st.integers(0, 30)))
def test_any_history_of_changes_gives_the_ring_of_those_who_are_there(
    changes: list[tuple[int, str | None]], available: int, questions: list[int]
) -> None:
    ring, names = HashRing(5), dict[int, str]()
    for number, (slot, name) in enumerate(changes):
        if name is None:
            ring.remove(slot)
            names.pop(slot, None)
        else:
            names[slot] = f"{name}-{slot}"
            ring.add(slot, names[slot])
        if number in questions:
            ring.owner("key", available)
    fresh = ring_of(dict(sorted(names.items())), virtual_nodes=5)
    assert [ring.owner(key, available) for key in KEYS[:20]] == [fresh.owner(key, available) for key in KEYS[:20]]


@pytest.mark.parametrize("count", [2, 3, 10, 150, 300])
def test_the_owner_is_the_nearest_point_clockwise_however_far(count: int) -> None:
    """Cases include keys past the last point and walks over hundreds of points of absent slots."""
    rng, names = random.Random(count), names_of(300)
    ring = ring_of(names, virtual_nodes=3)
    points = sorted((point, slot) for slot, name in names.items() for point in _points_of(name, 3))
    for number in range(200):
        available = rng.sample(range(300), count)
        start = _key_point(f"key-{number}")
        turn = [slot for point, slot in points if point >= start] + [slot for point, slot in points if point < start]
        expected = next(slot for slot in turn if slot in available)
        assert ring.owner(f"key-{number}", sum(1 << slot for slot in available)) == expected
