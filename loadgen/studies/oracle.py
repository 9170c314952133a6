"""Predictor that knows the length of every answer. It exists for simulations alone: an import contract forbids serving
code to import it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from gateway.core.features.disaggregated.predictor import Facts, Numbers, Predictor


class Oracle(Predictor):
    """Predicts from `output_tokens`: the tokens of each request's whole answer, by request id."""

    def __init__(self, output_tokens: Mapping[str, int]) -> None:
        self._output_tokens = output_tokens

    def estimate(self, ages: npt.NDArray[np.int64], facts: list[Facts], horizon: int) -> tuple[Numbers, Numbers]:
        left = np.array([self._output_tokens[each.request_id] for each in facts], np.float64) - ages
        return (left <= horizon).astype(np.float64), np.clip(left, 1.0, horizon)
