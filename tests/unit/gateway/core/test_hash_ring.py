from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.hash_ring import HashRing

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
    assert [ring.owner(key, EVERYBODY) for key in KEYS[:12]] == [3, 4, 4, 3, 3, 1, 0, 4, 0, 2, 4, 1]


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


def test_the_walk_goes_once_around() -> None:
    """With one point per slot every key must find the two that are available, wherever they sit."""
    rng = random.Random(1)
    ring = ring_of(names_of(64), virtual_nodes=1)
    for _ in range(200):
        pair = rng.sample(range(64), 2)
        assert ring.owner(f"key-{rng.random()}", 1 << pair[0] | 1 << pair[1]) in pair
