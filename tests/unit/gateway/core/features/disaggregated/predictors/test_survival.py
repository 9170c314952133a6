from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.features.disaggregated.predictors.arrays import (
    LENGTHS_MAX,
    TOKENS_MAX,
    SurvivalArrays,
    UnusableArrays,
)
from gateway.core.features.disaggregated.predictors.survival import Survival, fit_survival


def estimate(survival: Survival, age: int, horizon: int) -> tuple[float, float]:
    probability, tokens = survival.estimate(np.array([age], np.int64), [], horizon)
    return float(probability[0]), float(tokens[0])


@given(st.lists(st.integers(0, 60), min_size=1, max_size=40), st.integers(0, 70), st.integers(1, 30))
def test_it_is_the_share_and_the_mean_of_those_who_were_longer(lengths: list[int], age: int, horizon: int) -> None:
    older = [length for length in lengths if length > age]
    leaving = [length - age for length in older if length - age <= horizon]
    expected_tokens = sum(leaving) / len(leaving) if leaving else horizon
    found = estimate(Survival(fit_survival(lengths)), age, horizon)
    assert found == pytest.approx((len(leaving) / max(1, len(older)), expected_tokens), rel=1e-12)


def test_of_whoever_is_older_than_anybody_was_nothing_is_thought() -> None:
    assert estimate(Survival(fit_survival([5, 9])), 9, 48) == (0.0, 48.0)


def test_all_that_are_due_are_asked_about_at_once_and_in_their_order() -> None:
    survival = Survival(fit_survival([10, 100]))
    probability, tokens = survival.estimate(np.array([90, 0, 200], np.int64), [], 20)
    assert probability.tolist() == [1.0, 0.5, 0.0]
    assert tokens.tolist() == [10.0, 10.0, 20.0]


@pytest.mark.parametrize(
    ("lengths", "problem"),
    [
        ((), "there are no lengths"),
        ((3, 2), "ascending"),
        ((-1, 2), "between 0"),
        ((1, TOKENS_MAX + 1), "between 0"),
        (tuple(range(LENGTHS_MAX + 1)), "more than"),
    ],
)
def test_arrays_that_are_none_are_refused_in_words(lengths: tuple[int, ...], problem: str) -> None:
    with pytest.raises(UnusableArrays, match=problem):
        Survival(SurvivalArrays(lengths))
