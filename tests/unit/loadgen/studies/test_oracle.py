"""The oracle knows each request's length, and gives it in a predictor's form."""

from __future__ import annotations

import numpy as np

from gateway.core.features.disaggregated.predictor import Facts
from gateway.core.vocabulary import RequestId
from loadgen.studies.oracle import Oracle


def test_who_leaves_within_the_horizon_leaves_when_it_does() -> None:
    oracle = Oracle({"a": 100, "b": 60})
    facts = [Facts(RequestId(key), 5) for key in ("a", "b")]
    share, left = oracle.estimate(np.array([10, 50]), facts, 48)
    assert share.tolist() == [0.0, 1.0]
    assert left.tolist() == [48.0, 10.0]
