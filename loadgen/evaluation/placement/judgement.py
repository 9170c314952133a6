"""Whether our default is no worse than the best of the others on a workload, and by how much where it is. It only
counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from loadgen.evaluation import numbers as of
from loadgen.evaluation.experiments import Experiment
from loadgen.evaluation.numbers import Measure, Middle, median_of, ratio
from loadgen.evaluation.placement.systems import BASELINES, OURS
from loadgen.figures import Figures

THROUGHPUT_MIN = 0.99
"""Of the best baseline's."""
WAIT_MAX = 1.0
"""Of its mean TTFT."""
FAR_THROUGHPUT, FAR_WAIT = 1.2, 0.5
"""Far better is whoever reaches one of these."""
ALIKE = 0.01
"""Baselines that are nearer than this to the best are as good: of these, the one with the shortest TTFT counts."""
BENDS = 0.97
"""A curve bends down where throughput is less than this, of what it was at a lower load."""
BOUNDS_S = (1.0, 2.0)
"""Of TTFT p90: what is served within them is goodput."""

RunsOf = Callable[[Experiment, str, str], list[Figures]]
"""One for each seed, by experiment, point and run."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Ours beside the best of the others, at one point; seeds are paired."""

    point: str
    best: str
    """The baseline with most throughput."""
    quickest: str
    """Of those that have as much, the one with the shortest mean TTFT."""
    throughput: Middle | None
    wait: Middle | None
    """Mean TTFT; None where somebody answered nobody, and both None where somebody was not played."""

    @property
    def is_judged(self) -> bool:
        return self.throughput is not None and self.wait is not None

    @property
    def is_met(self) -> bool:
        return self.is_judged and not self.misses

    @property
    def is_far_better(self) -> bool:
        is_faster = self.throughput is not None and self.throughput.median >= FAR_THROUGHPUT
        return is_faster or (self.wait is not None and self.wait.median <= FAR_WAIT)

    @property
    def misses(self) -> list[str]:
        """What it falls short of, by how much and of whom."""
        found = []
        if self.throughput is not None and self.throughput.median < THROUGHPUT_MIN:
            found.append(f"throughput {self.throughput.median - 1:.1%} of {self.best}")
        if self.wait is not None and self.wait.median > WAIT_MAX:
            found.append(f"mean TTFT {self.wait.median - 1:+.0%} of {self.quickest}")
        return found


def verdict(experiment: Experiment, point: str, runs_of: RunsOf) -> Verdict:
    ours = runs_of(experiment, point, OURS)
    others = {name: runs_of(experiment, point, name) for name in experiment.run_names if name in BASELINES}
    rates = {name: median_of(runs, of.THROUGHPUT) or 0.0 for name, runs in others.items()}
    best = max(rates, key=rates.__getitem__)
    waits = {
        name: found
        for name, runs in others.items()
        if rates[name] >= (1 - ALIKE) * rates[best] and (found := median_of(runs, of.TTFT_MEAN)) is not None
    }
    quickest = min(waits, key=waits.__getitem__) if waits else best
    return Verdict(
        point,
        best,
        quickest,
        ratio(ours, others[best], of.THROUGHPUT),
        ratio(ours, others[quickest], of.TTFT_MEAN),
    )


def verdicts(experiment: Experiment, runs_of: RunsOf) -> list[Verdict]:
    return [verdict(experiment, point.name, runs_of) for point in experiment.points]


def curve(experiment: Experiment, run: str, measure: Measure, runs_of: RunsOf) -> list[float | None]:
    """The medians, in the order of the points."""
    return [median_of(runs_of(experiment, point.name, run), measure) for point in experiment.points]


def bends(values: Sequence[float | None]) -> float | None:
    """How deep a curve falls below what it reached before, as a share of that; None if it does not fall."""
    highest, deepest = 0.0, 1.0
    for value in values:
        if value is not None:
            highest = max(highest, value)
            deepest = min(deepest, value / highest if highest else 1.0)
    return deepest if deepest < BENDS else None


def goodput(experiment: Experiment, run: str, bound_s: float, runs_of: RunsOf) -> float | None:
    """The most requests a second over all loads at which nine in ten first tokens come in time; None where none is."""
    rates = curve(experiment, run, of.THROUGHPUT, runs_of)
    waits = curve(experiment, run, of.TTFT_P90, runs_of)
    held = [rate for rate, wait in zip(rates, waits, strict=True) if rate and wait is not None and wait <= bound_s]
    return max(held, default=None)


def all_goodputs(experiment: Experiment, bound_s: float, runs_of: RunsOf) -> Mapping[str, float | None]:
    return {name: goodput(experiment, name, bound_s, runs_of) for name in experiment.run_names}
