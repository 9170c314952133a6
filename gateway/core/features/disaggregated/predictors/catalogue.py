"""Make the estimator that arrays describe. The only module that knows every kind."""

from __future__ import annotations

from typing import assert_never

from gateway.core.features.disaggregated.predictors.arrays import (
    ExactMatchArrays,
    LearnedArrays,
    PredictorArrays,
    PredictorKind,
    SurvivalArrays,
)
from gateway.core.features.disaggregated.predictors.estimator import Estimator
from gateway.core.features.disaggregated.predictors.exact_match import ExactMatch
from gateway.core.features.disaggregated.predictors.learned import Learned
from gateway.core.features.disaggregated.predictors.survival import Survival


def make_estimator(arrays: PredictorArrays) -> Estimator:
    """Make the estimator. Raises UnusableArrays."""
    match arrays:
        case SurvivalArrays():
            return Survival(arrays)
        case ExactMatchArrays():
            return ExactMatch(arrays)
        case LearnedArrays():
            return Learned(arrays)
        case _:
            assert_never(arrays)


def kind_of(arrays: PredictorArrays) -> PredictorKind:
    match arrays:
        case SurvivalArrays():
            return PredictorKind.SURVIVAL
        case ExactMatchArrays():
            return PredictorKind.EXACT_MATCH
        case LearnedArrays():
            return PredictorKind.LEARNED
        case _:
            assert_never(arrays)
