from __future__ import annotations

import random

import pytest

from gateway.core.features.disaggregated.score import INFINITE, Score


def by_definition(delta: float, margins: list[float], discounts: list[float], alpha: float, beta: float) -> float:
    beyond = sum(g * max(0.0, delta - m) for g, m in zip(discounts, margins, strict=True))
    return alpha * sum(discounts) * delta - beta * beyond


def test_without_a_horizon_it_is_by_how_much_the_imbalance_shrinks() -> None:
    """The score is Σ (L_max − L_g) before an admission, less its value afterwards, for every worker and every size."""
    loads = [70, 100, 30, 55]
    for place, load in enumerate(loads):
        score = Score([float(max(loads) - load)], [1.0], 1.0, float(len(loads)))
        for delta in range(1, 150):
            after = [other + delta * (at == place) for at, other in enumerate(loads)]
            assert score.at(delta) == (len(loads) * max(loads) - sum(loads)) - (len(loads) * max(after) - sum(after))
        assert score.peak == max(loads) - load


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_its_definition_says_and_peaks_where_it_says(seed: int) -> None:
    rng = random.Random(seed)
    steps = rng.randint(1, 9)
    margins = [float(rng.randint(0, 60)) for _ in range(steps)]
    discounts = [rng.choice([0.5, 0.9, 1.0]) ** step for step in range(steps)]
    alpha, beta = rng.choice([1.0, 2.0]), rng.choice([2.5, 3.0, 8.0])
    score = Score(margins, discounts, alpha, beta)
    values = [by_definition(delta, margins, discounts, alpha, beta) for delta in range(100)]
    assert [score.at(delta) for delta in range(100)] == pytest.approx(values)
    assert score.at(score.peak) == pytest.approx(max(values))


def test_where_overflow_costs_less_than_it_brings_there_is_no_peak() -> None:
    score = Score([5.0, 9.0], [1.0, 1.0], 2.0, 1.0)
    assert score.peak == INFINITE
    assert score.at(10_000) > score.at(1_000) > score.at(100)


@pytest.mark.parametrize("seed", range(20))
def test_the_best_of_some_is_found_without_looking_at_all(seed: int) -> None:
    rng = random.Random(seed)
    score = Score([float(rng.randint(0, 60)) for _ in range(4)], [1.0, 0.9, 0.81, 0.7], 1.0, 4.0)
    weights = sorted(rng.randint(1, 80) for _ in range(rng.randint(1, 12)))
    assert score.at(weights[score.best_of(weights)]) == max(score.at(weight) for weight in weights)
