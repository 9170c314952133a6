from __future__ import annotations

import pytest

from gateway.core.features.disaggregated.predictors.arrays import LENGTHS_MAX
from gateway.core.features.disaggregated.predictors.history import Ended, History, recent_at_admission


def ended(output: int, after: int = 0) -> Ended:
    return Ended(0, 10, output, after, 0)


def test_the_oldest_go_first_and_all_are_counted() -> None:
    history = History(2)
    for output in (1, 2, 3):
        history.add(ended(output))
    taken = history.snapshot()
    history.add(ended(4))
    assert [each.output_tokens for each in taken.ended] == [2, 3]
    assert (taken.added, taken.first, len(history), history.added) == (3, 1, 2, 4)


def test_a_history_without_a_bound_is_none() -> None:
    for ended_max in (0, LENGTHS_MAX + 1):
        with pytest.raises(AssertionError):
            History(ended_max)


def test_of_what_came_after_its_admission_nothing_is_known_of_a_request() -> None:
    requests = [ended(100, after=5), ended(200, after=6), ended(900, after=6), ended(1, after=8)]
    recent = list(recent_at_admission(requests, first=5))
    assert [each.output_mean for each in recent] == [0.0, 100.0, 100.0, 400.0]


def test_an_admission_that_lies_is_held_to_what_had_ended() -> None:
    recent = list(recent_at_admission([ended(100, after=-3), ended(200, after=99)], first=0))
    assert [each.output_mean for each in recent] == [0.0, 100.0]
