"""Whether a rule of ours is fit to be a default, by every workload that it was to be played on.

It judges by arithmetic alone, and not at all while a workload is missing: that might be the one on which it loses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.evaluation import numbers as of
from loadgen.evaluation.experiments import Experiment
from loadgen.evaluation.numbers import Measure, Middle, mean_ratio, ratio
from loadgen.evaluation.skywalker.plan import SKYWALKER
from loadgen.evaluation.skywalker.reader import Reader

SAME = 0.01
"""What is nearer than this is the same."""
MAY_LOSE = 0.01
"""On any workload."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One of our rules against the paper's, or another: ratios by workload, those of the seeds at their median."""

    throughputs: Sequence[Middle]
    """Of the workloads that both were played on."""
    waits: Sequence[float]
    """Mean TTFT, of the workloads on which both gave a first token."""
    asked: int
    """On how many workloads."""

    @property
    def gains(self) -> list[float]:
        return [each.median for each in self.throughputs]

    @property
    def is_whole(self) -> bool:
        return bool(self.asked) and len(self.throughputs) == self.asked

    @property
    def gain(self) -> float:
        """Over all workloads that were played; there must be one."""
        return mean_ratio(self.gains)

    @property
    def better(self) -> int:
        return sum(each > 1 + SAME for each in self.gains)

    @property
    def worse(self) -> int:
        return sum(each < 1 - MAY_LOSE for each in self.gains)

    @property
    def worst_seed(self) -> float:
        return min(each.low for each in self.throughputs)

    @property
    def is_fit(self) -> bool:
        return self.is_whole and not self.worse and self.gain > 1 + SAME

    def verdict(self, fit: str, unfit: str) -> str:
        """In the words of whoever asks; none of them before all was played."""
        if not self.is_whole:
            return f"not judged, with {len(self.throughputs)} of {self.asked} workloads played"
        return fit if self.is_fit else unfit


def judgement(reader: Reader, name: str, base: str = SKYWALKER, *, unseen: bool = True) -> Judgement:
    """Over every workload that it was to be played on, those that nothing was fitted to as well unless told not to."""
    plan = reader.plan
    asked = [each for each in (plan.improvement, plan.unseen)[: 1 + unseen] if name in each.run_names]
    throughputs = _ratios(reader, asked, name, base, of.THROUGHPUT)
    waits = _ratios(reader, asked, name, base, of.TTFT_MEAN)
    return Judgement(throughputs, [each.median for each in waits], sum(len(each.points) for each in asked))


def _ratios(reader: Reader, asked: Sequence[Experiment], name: str, base: str, measure: Measure) -> list[Middle]:
    found = [
        ratio(reader.of(experiment, point.name, name), reader.of(experiment, point.name, base), measure)
        for experiment in asked
        for point in experiment.points
    ]
    return [each for each in found if each]
