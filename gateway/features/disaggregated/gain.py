"""Gain of predictions on a history: whether a fitted predictor foresees the decode workers' loads better than expecting
every request to stay, which is what `br_0` does.

The comparison is of errors over questions about the newest requests. It needs no library that serving does without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from gateway.core.features.disaggregated.config import BalanceConfig
from gateway.core.features.disaggregated.predictor import Numbers
from gateway.core.features.disaggregated.predictors.arrays import PredictorArrays
from gateway.core.features.disaggregated.predictors.catalogue import make_estimator
from gateway.core.features.disaggregated.predictors.estimator import Estimator
from gateway.core.features.disaggregated.predictors.history import Ended, Snapshot
from gateway.features.disaggregated.samples import PredictionSamples, questions_about, split_in_time

NEWEST_SHARE = 0.25
"""Share of a history, its newest requests, that questions are about."""
QUESTIONS_MAX = 20_000
EVERY_TOKENS = 8
_GAIN_MIN = 0.05
"""Least reduction of the error, as a share, that counts as better: below it, predictions move requests for nothing."""


class PredictionGain(Struct, frozen=True):
    """Root mean square errors in steps of how long running requests stay within the horizon."""

    predicted_steps: float
    unpredicted_steps: float
    """Error of expecting every request to stay."""

    @property
    def is_better(self) -> bool:
        return self.predicted_steps <= (1 - _GAIN_MIN) * self.unpredicted_steps and self.unpredicted_steps > 0


def gain_on_newest(
    snapshot: Snapshot, fit: Callable[[Sequence[Ended]], PredictorArrays], balance: BalanceConfig
) -> PredictionGain | None:
    """Gain on the newest requests of what `fit` makes of the earlier ones; None where there are too few, or where the
    fit is for another horizon. Raises UnusableArrays."""
    split = split_in_time(snapshot, NEWEST_SHARE)
    if not split.earlier or not split.later:
        return None
    estimator, horizon = make_estimator(fit([ended for ended, _ in split.earlier])), balance.horizon_steps
    if not estimator.answers_for(horizon):
        return None
    questions = questions_about(split.later, every_tokens=EVERY_TOKENS, questions_max=QUESTIONS_MAX)
    return gain_of(estimator, questions, horizon, balance.confidence_min)


def gain_of(estimator: Estimator, questions: PredictionSamples, horizon: int, gate: float) -> PredictionGain | None:
    """Gain of an estimator whose answers below the probability `gate` are not believed; None without questions."""
    if not len(questions):
        return None
    probability, tokens = estimator.estimate(questions.ages, questions.features, horizon)
    expected = np.where(probability >= gate, expected_steps(probability, tokens, horizon), horizon)
    truth = questions.within(horizon)
    return PredictionGain(root_mean_square(expected - truth), root_mean_square(horizon - truth))


def expected_steps(probability: Numbers, tokens: Numbers, horizon: int) -> Numbers:
    """Expected steps ĉ = p̂·μ̂ + (1 − p̂)·H, clipped to 1…H."""
    return np.clip(probability * tokens + (1 - probability) * horizon, 1.0, float(horizon))


def root_mean_square(errors: Numbers) -> float:
    return float(np.sqrt(np.square(errors).mean()))
