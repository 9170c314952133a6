"""Counts what a predictor foresees: requests whose end it expects within the horizon, and how often it is right. It
changes no prediction."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from gateway.core.features.disaggregated.predictor import Facts, Numbers, Predictor
from loadgen.figures import Figures


class ForesightCounter(Predictor):
    """Passes every query on to another predictor, and counts its answers."""

    def __init__(self, predictor: Predictor, output_tokens: Mapping[str, int], confidence_min: float) -> None:
        """`output_tokens`: the true length of each answer, by request id. An end counts as foreseen from a probability
        of `confidence_min` on, as for the tier."""
        self._predictor = predictor
        self._output_tokens = output_tokens
        self._confidence_min = confidence_min
        self._foreseen: set[str] = set()
        self._forecasts = self._ends_expected = self._right = 0

    def is_ready(self, now_ns: int) -> bool:
        return self._predictor.is_ready(now_ns)

    def note(self, facts: Facts) -> object:
        return self._predictor.note(facts)

    def ended(self, facts: Facts, output_tokens: int, now_ns: int) -> None:
        self._predictor.ended(facts, output_tokens, now_ns)

    def estimate(self, ages: npt.NDArray[np.int64], facts: list[Facts], horizon: int) -> tuple[Numbers, Numbers]:
        share, mean = self._predictor.estimate(ages, facts, horizon)
        self._forecasts += len(facts)
        for place in np.flatnonzero(share >= self._confidence_min).tolist():
            key = facts[place].request_id
            self._foreseen.add(key)
            self._ends_expected += 1
            self._right += self._output_tokens[key] - int(ages[place]) <= horizon
        return share, mean

    def figures(self, requests: int) -> Figures:
        """Share of all `requests` of which an end within the horizon was foreseen at least once; share of forecasts
        that expect an end, and of those, the share that is right."""
        return {
            "foreseen_share": len(self._foreseen) / max(1, requests),
            "ending_share": self._ends_expected / max(1, self._forecasts),
            "right_share": self._right / max(1, self._ends_expected),
        }
