"""Table 4 at small size: the same code as the page, on fewer requests."""

from __future__ import annotations

import random

import pytest

from gateway.core.vocabulary import Category
from loadgen.studies.prompts.convergence import (
    ANSWERS,
    CountedRequest,
    Learnt,
    PaperRule,
    Static,
    drawn,
    followed,
    over_seeds,
)


def test_fifty_answers_suffice_and_less_than_one_in_a_hundred_goes_where_it_does_not_fit() -> None:
    ours = over_seeds(drawn, Learnt, seeds=8, requests=800)
    assert set(ours.ratio_error) == set(Category)
    assert max(ours.ratio_error.values()) <= 0.035
    assert max(ours.misrouted.values()) < 0.01


def test_as_written_it_leaves_cjk_too_far_off_and_four_bytes_for_all_further() -> None:
    written = over_seeds(drawn, PaperRule, seeds=8, requests=800)
    assert written.ratio_error[Category.CJK] > 0.035
    static = over_seeds(drawn, Static, seeds=8, requests=800)
    assert static.ratio_error[Category.CJK] > 0.9
    assert static.misrouted[Category.CJK] > 5 * written.misrouted[Category.CJK]


def test_only_what_does_not_fit_and_goes_short_counts_as_misrouted() -> None:
    """Requests have twice as many tokens as four bytes each would give: the static estimate is half."""
    warm = [CountedRequest(Category.CJK, 4000, 2000, 0)] * ANSWERS
    long, fits, longer = (CountedRequest(Category.CJK, size, size // 2, 0) for size in (20_000, 8_000, 200_000))
    found = followed([*warm, long, fits, longer], Static(), 1000)
    assert found.requests == 3
    assert found.misrouted == {Category.CJK: pytest.approx(1 / 3)}
    assert found.too_careful == 0
    assert found.estimate_error == pytest.approx(0.5)


def test_the_same_seed_tells_the_same_story() -> None:
    assert [next(drawn(random.Random(3))) for _ in range(2)] == [next(drawn(random.Random(3)))] * 2
