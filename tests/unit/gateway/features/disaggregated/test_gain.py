from __future__ import annotations

import numpy as np
import pytest

from gateway.core.features.disaggregated.predictors.catalogue import make_estimator
from gateway.core.features.disaggregated.predictors.history import Ended, Snapshot
from gateway.core.features.disaggregated.predictors.survival import fit_survival
from gateway.features.disaggregated.gain import PredictionGain, expected_steps, gain_of, root_mean_square
from gateway.features.disaggregated.samples import questions_about, with_features

HORIZON = 20


def gain(fitted: list[int], asked: list[int]) -> PredictionGain | None:
    ended = tuple(Ended(0, 10, output, number, 0) for number, output in enumerate(asked))
    questions = questions_about(list(with_features(Snapshot(ended, len(ended)))), every_tokens=4)
    return gain_of(make_estimator(fit_survival(fitted)), questions, HORIZON, gate=0.5)


def test_answers_that_end_at_a_limit_are_foreseen() -> None:
    found = gain([100] * 50, [100] * 20)
    assert found is not None
    assert found.is_better
    assert found.predicted_steps < 1 < found.unpredicted_steps


def test_nothing_is_gained_where_nothing_was_missed() -> None:
    assert not PredictionGain(0.0, 0.0).is_better


def test_lengths_that_the_fit_has_wrong_are_no_gain() -> None:
    found = gain([10] * 50, list(range(200, 400, 10)))
    assert found is None or not found.is_better


@pytest.mark.parametrize(("predicted", "is_better"), [(9.5, True), (9.6, False), (10.4, False)])
def test_a_small_gain_is_none(predicted: float, is_better: bool) -> None:
    assert PredictionGain(predicted, 10.0).is_better is is_better


def test_without_questions_nothing_is_known() -> None:
    assert gain([5], []) is None


def test_steps_are_expected_within_the_horizon() -> None:
    told = expected_steps(np.array([1.0, 1.0, 0.0]), np.array([-5.0, 99.0, 3.0]), HORIZON)
    assert told.tolist() == [1, HORIZON, HORIZON]
    assert root_mean_square(np.array([3.0, -4.0, 0.0, 0.0])) == 2.5
