"""Survival: both estimates from the lengths of earlier answers that were longer than the request's age.

The request is known only by its age. Source: BalanceRoute, Appendix C.2.1; O(log n) per query.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from gateway.core.features.disaggregated.predictor import Numbers
from gateway.core.features.disaggregated.predictors.arrays import (
    LENGTHS_MAX,
    TOKENS_MAX,
    SurvivalArrays,
    UnusableArrays,
)
from gateway.core.features.disaggregated.predictors.estimator import Ages, Estimator, Features


class Survival(Estimator):
    """Survival estimator. Raises UnusableArrays for invalid arrays."""

    def __init__(self, arrays: SurvivalArrays) -> None:
        check_lengths(arrays.output_tokens, "output_tokens")
        self._sorted = np.array(arrays.output_tokens, np.int64)
        self._sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(self._sorted)))

    def estimate(self, ages: Ages, features: list[Features], horizon: int) -> tuple[Numbers, Numbers]:  # noqa: ARG002
        """Estimates from answers longer than the age. A request older than every known answer is assumed to stay."""
        first = np.searchsorted(self._sorted, ages, "right")
        end = np.searchsorted(self._sorted, ages + horizon, "right")
        older, leaving = len(self._sorted) - first, end - first
        probability = leaving / np.maximum(older, 1)
        mean = (self._sums[end] - self._sums[first]) / np.maximum(leaving, 1) - ages
        return probability, np.where(leaving > 0, mean, float(horizon))


def fit_survival(output_tokens: Iterable[int]) -> SurvivalArrays:
    """Fit to at least one answer."""
    return SurvivalArrays(tuple(np.sort(np.fromiter(output_tokens, np.int64)).tolist()))


def check_lengths(ascending: Sequence[int], name: str) -> None:
    if not ascending:
        raise UnusableArrays(f"{name}: there are no lengths")
    if len(ascending) > LENGTHS_MAX:
        raise UnusableArrays(f"{name}: {len(ascending)} lengths are more than {LENGTHS_MAX}")
    if ascending[0] < 0 or ascending[-1] > TOKENS_MAX:
        raise UnusableArrays(f"{name}: lengths should lie between 0 and {TOKENS_MAX}")
    if any(after < before for before, after in pairwise(ascending)):
        raise UnusableArrays(f"{name}: should be in ascending order")
