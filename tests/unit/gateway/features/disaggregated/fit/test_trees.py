from __future__ import annotations

import random

import numpy as np
import pytest

from gateway.core.features.disaggregated.predictors.history import Ended, Snapshot
from gateway.core.features.disaggregated.predictors.learned import Learned, feature_rows
from gateway.features.disaggregated.fit.trees import TooLittle, TreeRules, fit_trees, library_answers
from gateway.features.disaggregated.samples import PredictionSamples, questions_about, with_features

HORIZON = 30


def questions(seed: int, requests: int = 400) -> PredictionSamples:
    rng = random.Random(seed)
    ended = []
    for number in range(requests):
        prompt = rng.randrange(1, 4000)
        output = max(0, round(rng.gauss(prompt / 10, 30)))
        ended.append(Ended(0, prompt, output, rng.randrange(number + 1), 0))
    return questions_about(list(with_features(Snapshot(tuple(ended), len(ended)))), every_tokens=5)


@pytest.mark.parametrize("rules", [TreeRules(), TreeRules(trees=7, leaves_max=64, depth_max=20, leaf_questions_min=1)])
def test_plain_arrays_answer_as_the_library_does(rules: TreeRules) -> None:
    fitted = fit_trees(questions(1), HORIZON, rules)
    asked = questions(2)
    rows = feature_rows(asked.ages, asked.features)
    at_thresholds = rows[:200].copy()
    at_thresholds[:, 1] = np.resize(fitted.arrays.leaves.threshold, 200)
    learned = Learned(fitted.arrays)
    for each in (rows, at_thresholds, rows * 1e6, -rows):
        probability, remaining = library_answers(fitted, each)
        assert np.abs(learned.probability(each) - probability).max() < 1e-9
        assert np.abs(learned.remaining(each) - remaining).max() < 1e-9


def test_equal_questions_make_equal_trees() -> None:
    assert fit_trees(questions(1), HORIZON).arrays == fit_trees(questions(1), HORIZON).arrays


@pytest.mark.parametrize(("outputs", "word"), [((1, 2), "every"), ((900, 900), "no")])
def test_nothing_is_learned_where_nothing_differs(outputs: tuple[int, ...], word: str) -> None:
    ended = tuple(Ended(0, 10, output, 0, 0) for output in outputs)
    asked = questions_about(list(with_features(Snapshot(ended, 2))), every_tokens=2000)
    with pytest.raises(TooLittle, match=f"^{word} request leaves"):
        fit_trees(asked, HORIZON)
