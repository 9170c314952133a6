"""Predictions name runs of the plan, and nothing else."""

from __future__ import annotations

from loadgen.studies.protocols import judgement
from loadgen.studies.protocols.expected import PREDICTED, is_expected
from tests.support.protocol_runs import record


def test_every_prediction_names_runs_of_the_plan() -> None:
    gains = list(judgement.gains(record()))
    for each in PREDICTED.reached:
        named = [gain for gain in gains if each.has(gain)]
        assert len(named) == len(each.batches) * len(each.contenders), each
    assert sum(map(is_expected, gains)) == sum(len(each.batches) * len(each.contenders) for each in PREDICTED.reached)
    assert len(PREDICTED.text) > 100
