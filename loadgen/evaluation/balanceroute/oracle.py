"""Who knows how long every answer will be. It exists for simulations alone: nothing that serves may import it, and a
contract of imports says so."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from gateway.core.decode.predictor import Facts, Numbers, Predictor


class Oracle(Predictor):
    """By the id of a request, the tokens of its whole answer."""

    def __init__(self, output_tokens: Mapping[str, int]) -> None:
        self._output_tokens = output_tokens

    def estimate(self, ages: npt.NDArray[np.int64], facts: list[Facts], horizon: int) -> tuple[Numbers, Numbers]:
        left = np.array([self._output_tokens[each.request_id] for each in facts], np.float64) - ages
        return (left <= horizon).astype(np.float64), np.clip(left, 1.0, horizon)
