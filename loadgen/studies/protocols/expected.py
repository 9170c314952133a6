"""Predictions of the study, from the file that was committed before the run."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.studies.data import read_data
from loadgen.studies.protocols.judgement import Gain


@dataclass(frozen=True, slots=True)
class ExpectedRuns:
    """Runs that are expected to reach both gains: every contender at every batch."""

    load: str
    procedure: str
    at_once: bool
    room_share: float
    batches: list[int]
    contenders: list[str]

    def has(self, gain: Gain) -> bool:
        case = gain.case
        where = case.load.name, case.procedure.name, gain.at_once, case.room_share
        is_here = where == (self.load, self.procedure, self.at_once, self.room_share)
        return is_here and case.batch in self.batches and gain.contender.title in self.contenders


@dataclass(frozen=True, slots=True)
class Predictions:
    reached: list[ExpectedRuns]
    text: str
    longer: str
    """Prediction of the longer runs."""
    full: str
    """Prediction of the runs with full caches."""


PREDICTED = read_data("protocols/expected.yaml", Predictions)


def is_expected(gain: Gain) -> bool:
    return any(each.has(gain) for each in PREDICTED.reached)
