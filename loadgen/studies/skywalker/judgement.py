"""Judges whether a rule is fit to be the default, by every workload that it was to be played on.

It judges by arithmetic alone, and not at all while a workload is missing: that might be the one on which it loses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.studies import numbers as of
from loadgen.studies.experiments import Experiment
from loadgen.studies.numbers import Measure, Middle, mean_ratio, ratio
from loadgen.studies.skywalker.plan import SKYWALKER
from loadgen.studies.skywalker.reader import SectionReader

SAME = 0.01
"""Relative difference below which values count as equal."""
MAY_LOSE = 0.01
"""Loss that is allowed on any workload."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One rule compared with the paper's, or with another: ratios by workload, each the median of the seeds."""

    throughputs: Sequence[Middle]
    """Throughput ratios of the workloads that both were played on."""
    waits: Sequence[float]
    """Ratios of mean TTFT, of the workloads on which both gave a first token."""
    asked: int
    """Number of workloads that the rule was to be played on."""

    @property
    def gains(self) -> list[float]:
        return [each.median for each in self.throughputs]

    @property
    def is_whole(self) -> bool:
        return bool(self.asked) and len(self.throughputs) == self.asked

    @property
    def gain(self) -> float:
        """Mean ratio over all workloads that were played; there must be one."""
        return mean_ratio(self.gains)

    @property
    def wait(self) -> float | None:
        """Mean ratio of the waits; None where a workload has none because a system answered no request there."""
        return mean_ratio(self.waits) if len(self.waits) == len(self.gains) else None

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
        """One of the given texts, or that nothing is judged before all workloads were played."""
        if not self.is_whole:
            return f"not judged, with {len(self.throughputs)} of {self.asked} workloads played"
        return fit if self.is_fit else unfit


def judgement(reader: SectionReader, name: str, base: str = SKYWALKER, *, unseen: bool = True) -> Judgement:
    """Judgement over every workload that the rule was to be played on, with those that nothing was fitted to if
    `unseen`."""
    plan = reader.plan
    asked = [each for each in (plan.improvement, plan.unseen)[: 1 + unseen] if name in each.run_names]
    throughputs = _ratios(reader, asked, name, base, of.THROUGHPUT)
    waits = _ratios(reader, asked, name, base, of.TTFT_MEAN)
    return Judgement(throughputs, [each.median for each in waits], sum(len(each.points) for each in asked))


def _ratios(reader: SectionReader, asked: Sequence[Experiment], name: str, base: str, measure: Measure) -> list[Middle]:
    found = [
        ratio(reader.of(experiment, point.name, name), reader.of(experiment, point.name, base), measure)
        for experiment in asked
        for point in experiment.points
    ]
    return [each for each in found if each]
