from __future__ import annotations

from itertools import combinations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.core.features.disaggregated.score import Score
from gateway.core.features.disaggregated.subset import best_subset
from tests.support.nightly import examples

SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=8).map(lambda sizes: sorted(sizes, reverse=True))
MARGINS = st.lists(st.integers(0, 150).map(float), min_size=1, max_size=7)
PENALTIES = st.sampled_from([0.5, 1.5, 4.0, 8.0, 48.0])
DISCOUNTS = st.sampled_from([0.5, 0.9, 1.0])


def score_of(margins: list[float], discount: float, penalty: float) -> Score:
    return Score(margins, [discount**step for step in range(len(margins))], 1.0, penalty)


def enumerated(sizes: list[int], count_max: int, score: Score, unit: int, sum_max: int | None) -> float | None:
    """Score of the best of all subsets; None if there is none."""
    sums = [sum(some) for count in range(1, count_max + 1) for some in combinations(sizes, count)]
    return max((score.at(each * unit) for each in sums if sum_max is None or each <= sum_max), default=None)


SHAPES = st.tuples(MARGINS, DISCOUNTS, PENALTIES)
LIMITS = st.tuples(st.integers(1, 9), st.none() | st.integers(0, 200))


@settings(max_examples=examples(few=100, night=600))
@given(SIZES, LIMITS, SHAPES, st.sampled_from([1, 16]))
@example([20], (1, None), ([0.0], 1.0, 8.0), 1)
@example([3, 2, 2], (2, None), ([4.0], 1.0, 2.0), 1)
def test_it_is_as_good_as_the_best_of_all_subsets(
    sizes: list[int], limits: tuple[int, int | None], shape: tuple[list[float], float, float], unit: int
) -> None:
    count_max, sum_max = limits
    margins, discount, penalty = shape
    score = score_of([margin * unit for margin in margins], discount, penalty)
    best = enumerated(sizes, min(count_max, len(sizes)), score, unit, sum_max)
    chosen = best_subset(sizes, count_max, score, unit, sum_max)
    if best is None:
        assert chosen == []
        return
    assert sorted(set(chosen)) == chosen
    assert 1 <= len(chosen) <= count_max
    total = sum(sizes[place] for place in chosen)
    assert sum_max is None or total <= sum_max
    assert abs(score.at(total * unit) - best) < 1e-6


def test_of_equal_sums_the_one_that_serves_most() -> None:
    assert best_subset([6, 3, 3], 2, score_of([6.0], 1.0, 4.0)) == [1, 2]


def test_what_fits_together_is_taken_together() -> None:
    assert best_subset([9, 5, 2], 3, score_of([16.0], 1.0, 4.0)) == [0, 1, 2]
    assert best_subset([9, 5, 2], 2, score_of([16.0], 1.0, 4.0)) == [0, 1]


def test_one_too_large_is_passed_over_and_where_all_are_there_is_none() -> None:
    score = score_of([100.0], 1.0, 4.0)
    assert best_subset([90, 40, 30], 2, score, sum_max=70) == [1, 2]
    assert best_subset([90, 40, 30], 1, score, sum_max=39) == [2]
    assert best_subset([90, 40, 30], 2, score, sum_max=29) == []


def test_a_large_window_of_large_requests_is_solved_as_well() -> None:
    """A window of 32 requests of up to 100,000 tokens, in blocks: 10,000,000,000 subsets of eight, and a sum that is
    met to the block."""
    sizes = sorted(((place * 7919) % 6000 + 100 for place in range(32)), reverse=True)
    aim = sum(sizes[3::4])
    chosen = best_subset(sizes, 8, score_of([float(aim * 16)], 1.0, 8.0), 16)
    assert sum(sizes[place] for place in chosen) == aim
