from __future__ import annotations

import pytest

from gateway.core.features.cache_digests.changes import Changes


def everything(_: int) -> bool:
    return True


def test_a_change_is_told_once_at_its_last_version() -> None:
    changes = Changes(10)
    changes.add(1)
    changes.add(2)
    changes.remove(1)
    changes.add(1)
    batch = changes.after(0, 0, 10, everything)
    assert (batch.added, batch.removed, batch.version) == ([2, 1], [], 4)


def test_what_is_known_is_not_told_again() -> None:
    changes = Changes(10)
    changes.add(1)
    changes.add(1)
    assert changes.version == 1
    batch = changes.after(1, 0, 10, everything)
    assert (batch.added, batch.removed, batch.version) == ([], [], 1)


def test_a_removal_is_told_only_to_those_that_were_told_of_the_entry() -> None:
    changes = Changes(10)
    changes.add(1)
    changes.remove(1)
    assert changes.after(0, 2, 10, everything).removed == []
    assert changes.after(1, 0, 10, everything).removed == [1]


def test_a_batch_has_a_limit_and_the_next_one_goes_on() -> None:
    changes = Changes(10)
    for entry in range(5):
        changes.add(entry)
    first = changes.after(0, 0, 3, everything)
    second = changes.after(first.version, 0, 3, everything)
    assert (first.added, second.added) == ([0, 1, 2], [3, 4])


def test_what_may_not_be_told_takes_no_room() -> None:
    changes = Changes(10)
    for entry in range(6):
        changes.add(entry)
    batch = changes.after(0, 0, 3, lambda entry: entry % 2 == 1)
    assert batch.added == [1, 3, 5]


def test_removals_are_forgotten_and_whoever_missed_one_starts_anew() -> None:
    changes = Changes(4)
    for entry in range(6):
        changes.add(entry)
    for entry in range(5):
        changes.remove(entry)
    assert len(changes) == 1
    assert changes.forgotten > 6
    assert changes.violations() == []
    with pytest.raises(AssertionError):
        changes.after(6, 6, 10, everything)
    assert changes.after(0, changes.version, 10, everything).added == [5]


def test_the_log_stays_short_however_often_entries_come_and_go() -> None:
    changes = Changes(10)
    for _ in range(2_000):
        changes.add(1)
        changes.remove(1)
    assert changes.violations() == []
    assert changes.version == 4_000
