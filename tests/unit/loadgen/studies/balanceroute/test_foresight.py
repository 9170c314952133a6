"""Forecasts are passed on unchanged, and counted once per request."""

from __future__ import annotations

import numpy as np

from gateway.core.features.disaggregated.predictor import Facts
from gateway.core.vocabulary import RequestId
from loadgen.studies.balanceroute.foresight import ForesightCounter
from loadgen.studies.oracle import Oracle

ANSWERS = {"short": 40, "long": 500}


def counted(**foretold: int) -> ForesightCounter:
    """Counter over a predictor that takes `foretold` for the lengths of the answers."""
    return ForesightCounter(Oracle(foretold), ANSWERS, 0.5)


def ask(counter: ForesightCounter, *ages: int) -> list[float]:
    facts = [Facts(RequestId(name), 10) for name in ANSWERS]
    share, _ = counter.estimate(np.array(ages, np.int64), facts, 48)
    return [float(each) for each in share]


def test_an_end_within_the_horizon_counts_once_for_its_request() -> None:
    counter = counted(**ANSWERS)
    assert [ask(counter, 0, 0), ask(counter, 24, 24)] == [[1.0, 0.0], [1.0, 0.0]]
    assert counter.figures(2) == {"foreseen_share": 0.5, "ending_share": 0.5, "right_share": 1.0}


def test_an_end_that_does_not_come_counts_as_wrong() -> None:
    counter = counted(short=40, long=30)
    ask(counter, 0, 0)
    assert counter.figures(4) == {"foreseen_share": 0.5, "ending_share": 1.0, "right_share": 0.5}


def test_a_predictor_that_was_never_asked_foresees_nothing() -> None:
    assert set(counted(**ANSWERS).figures(0).values()) == {0.0}
