"""Learned: two forests of boosted trees over properties of a request and of recent ones, evaluated for many requests at
once.

Evaluation only; the forests are fitted outside the serving process. Source: BalanceRoute, Appendix C.2.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gateway.core.features.disaggregated.predictor import Numbers
from gateway.core.features.disaggregated.predictors.arrays import TOKENS_MAX, LearnedArrays, UnusableArrays
from gateway.core.features.disaggregated.predictors.estimator import Ages, Estimator, Features
from gateway.core.features.disaggregated.predictors.forest import Forest

FEATURES = (
    "prompt_tokens",
    "age_tokens",
    "output_fast",
    "output_slow",
    "output_mean",
    "output_deviation",
    "prompt_mean",
    "prompt_deviation",
)
_AGE = FEATURES.index("age_tokens")


def feature_rows(ages: Ages, features: Sequence[Features]) -> Numbers:
    """Matrix with a row for each request and a column for each of FEATURES; used both in service and for fitting."""
    rows = np.array([_row(each) for each in features], np.float64).reshape(-1, len(FEATURES))
    rows[:, _AGE] = ages
    return rows


def _row(features: Features) -> tuple[float, ...]:
    recent = features.recent
    return (
        features.prompt_tokens,
        0.0,
        recent.output_fast,
        recent.output_slow,
        recent.output_mean,
        recent.output_deviation,
        recent.prompt_mean,
        recent.prompt_deviation,
    )


class Learned(Estimator):
    """Learned estimator. Raises UnusableArrays for invalid arrays."""

    def __init__(self, arrays: LearnedArrays) -> None:
        if arrays.features != FEATURES:
            raise UnusableArrays(f"features: should be {', '.join(FEATURES)}")
        if not 0 < arrays.horizon <= TOKENS_MAX:
            raise UnusableArrays(f"horizon: {arrays.horizon} is no number of steps")
        self._horizon = arrays.horizon
        self._leaves = Forest(arrays.leaves, len(FEATURES), "leaves")
        self._remains = Forest(arrays.remains, len(FEATURES), "remains")

    def answers_for(self, horizon: int) -> bool:
        return horizon == self._horizon

    def estimate(self, ages: Ages, features: list[Features], horizon: int) -> tuple[Numbers, Numbers]:
        """Estimates for the fitted horizon; NaN for any other. Remaining tokens are clipped to 1 … H."""
        if horizon != self._horizon:
            nothing = np.full(len(ages), np.nan)
            return nothing, nothing
        rows = feature_rows(ages, features)
        return self.probability(rows), np.clip(self.remaining(rows), 1.0, float(horizon))

    def probability(self, rows: Numbers) -> Numbers:
        odds = np.clip(self._leaves.evaluate(rows), -700.0, 700.0)  # e^x overflows beyond these
        return np.asarray(1.0 / (1.0 + np.exp(-odds)), np.float64)

    def remaining(self, rows: Numbers) -> Numbers:
        """Remaining tokens, not clipped to the horizon."""
        return self._remains.evaluate(rows)
