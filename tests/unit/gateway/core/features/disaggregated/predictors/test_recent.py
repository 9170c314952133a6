from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.features.disaggregated.predictors.recent import NOTHING_RECENT, WINDOW, RecentRequests

_LENGTHS = st.tuples(st.integers(0, 200_000), st.integers(0, 50_000))


@given(st.lists(_LENGTHS, min_size=1, max_size=20), st.integers(0, 400))
def test_they_are_those_of_the_last_ones_and_no_others(lengths: list[tuple[int, int]], before: int) -> None:
    recent = RecentRequests()
    every = [*((99, 77) for _ in range(before)), *lengths]
    for prompt, output in every:
        recent.left(prompt, output)
    window = every[-WINDOW:]
    found = recent.lengths()
    assert found.output_mean == pytest.approx(statistics.fmean(output for _, output in window))
    assert found.output_deviation == pytest.approx(statistics.pstdev(output for _, output in window), abs=1e-6)
    assert found.prompt_mean == pytest.approx(statistics.fmean(prompt for prompt, _ in window))
    assert found.prompt_deviation == pytest.approx(statistics.pstdev(prompt for prompt, _ in window), abs=1e-6)


def test_moving_averages_are_means_at_first_and_forget_at_their_own_pace() -> None:
    recent = RecentRequests()
    assert recent.lengths() == NOTHING_RECENT
    for output in (100, 200, 300):
        recent.left(10, output)
    assert (recent.lengths().output_fast, recent.lengths().output_slow) == pytest.approx((200.0, 200.0))
    for _ in range(100):
        recent.left(10, 1000)
    assert recent.lengths().output_fast > 990 > recent.lengths().output_slow > 900
