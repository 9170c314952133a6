from __future__ import annotations

import numpy as np
import pytest

from gateway.core.features.disaggregated.predictor import Numbers
from gateway.core.features.disaggregated.predictors.estimator import Ages, Estimator, Features
from gateway.core.features.disaggregated.predictors.recent import NOTHING_RECENT
from gateway.features.disaggregated.fit.scores import Bin, score
from gateway.features.disaggregated.gain import expected_steps
from gateway.features.disaggregated.samples import PredictionSamples

HORIZON = 10
REMAINING = (2, 4, 30, 40)


class Says(Estimator):
    def __init__(self, probability: list[float], tokens: list[float]) -> None:
        self.answer = np.array(probability), np.array(tokens)

    def estimate(self, ages: Ages, features: list[Features], horizon: int) -> tuple[Numbers, Numbers]:
        return self.answer


def asked(remaining: tuple[int, ...] = REMAINING) -> PredictionSamples:
    count = len(remaining)
    return PredictionSamples(np.zeros(count, np.int64), [Features(1, 0, NOTHING_RECENT)] * count, np.array(remaining))


def test_who_knows_everything_has_no_error() -> None:
    scores = score(Says([1, 1, 0, 0], [2, 4, 10, 10]), asked(), HORIZON, requests=4)
    assert (scores.auc, scores.brier, scores.mae_tokens, scores.expected_rms_steps) == (1.0, 0.0, 0.0, 0.0)
    assert (scores.leaving_share, scores.brier_of_share, scores.believed_share) == (0.5, 0.25, 0.5)
    assert scores.believed_right_share == 1.0
    assert scores.anchor_rms_steps == pytest.approx(((8**2 + 6**2) / 4) ** 0.5)
    assert scores.bins == (Bin(2, 0.0, 0.0), Bin(2, 1.0, 1.0))


def test_each_stage_is_scored_by_itself_and_both_together() -> None:
    scores = score(Says([0.6, 0.4, 0.4, 0.2], [5, 5, 5, 5]), asked(), HORIZON, requests=4)
    assert scores.auc == 0.875
    assert scores.brier == pytest.approx((0.16 + 0.36 + 0.16 + 0.04) / 4)
    assert scores.mae_tokens == 2.0
    assert scores.expected_rms_steps == pytest.approx(((0.6 * 5 + 0.4 * 10 - 2) ** 2 / 4 + 6**2 / 4) ** 0.5)
    assert [each.questions for each in scores.bins] == [1, 2, 1]


def test_where_all_leave_or_nobody_does_there_is_nothing_to_tell_apart() -> None:
    all_leave = score(Says([0.9, 0.9], [2, 2]), asked((1, 2)), HORIZON, requests=2)
    assert (all_leave.auc, all_leave.mae_tokens) == (None, 0.5)
    nobody = score(Says([0.1, 0.1], [2, 2]), asked((50, 60)), HORIZON, requests=2)
    assert (nobody.auc, nobody.mae_tokens, nobody.believed_right_share) == (None, None, None)


def test_expected_steps_stay_within_the_horizon() -> None:
    said = expected_steps(np.array([1.0, 1.0, 0.0, 0.5]), np.array([-5.0, 99.0, 3.0, 4.0]), HORIZON)
    assert said.tolist() == [1.0, 10.0, 10.0, 7.0]
