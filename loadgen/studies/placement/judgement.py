"""Judges whether the default is at least as good as the best baseline on a workload, and by how much. It only
counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from loadgen.figures import Figures
from loadgen.pages.markdown import NOTHING
from loadgen.studies import numbers as of
from loadgen.studies.experiments import Experiment
from loadgen.studies.numbers import Measure, Middle, median_of, ratio
from loadgen.studies.placement.systems import BASELINES, OURS

THROUGHPUT_MIN = 0.99
"""Minimum throughput, as a share of the best baseline's."""
WAIT_MAX = 1.0
"""Maximum mean TTFT, as a multiple of the best baseline's."""
FAR_THROUGHPUT, FAR_WAIT = 1.2, 0.5
"""Ratios of throughput and mean TTFT; reaching either counts as far better."""
ALIKE = 0.01
"""Throughput difference within which baselines are equally good: of these, the one with the shortest TTFT counts."""
BENDS = 0.97
"""Throughput relative to that of a lower load, below which a curve bends down."""
BOUNDS_S = (1.0, 2.0)
"""Bounds on TTFT p90: goodput is the throughput within them."""

RunsOf = Callable[[Experiment, str, str], list[Figures]]
"""Figures by experiment, point and run, one for each seed."""


@dataclass(frozen=True, slots=True)
class PointVerdict:
    """The default beside the best baseline, at one point; seeds are paired."""

    point: str
    best: str
    """The baseline with the highest throughput."""
    quickest: str
    """Baseline with the shortest mean TTFT, among those with about the highest throughput."""
    throughput: Middle | None
    wait: Middle | None
    """Ratio of mean TTFT; None where a system answered no request, and both ratios are None where one was not
    played."""

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
        """Aims that are missed, each with the size of the shortfall and the baseline."""
        found = []
        if self.throughput is not None and self.throughput.median < THROUGHPUT_MIN:
            found.append(f"throughput {self.throughput.median - 1:.1%} of {self.best}")
        if self.wait is not None and self.wait.median > WAIT_MAX:
            found.append(f"mean TTFT {self.wait.median - 1:+.0%} of {self.quickest}")
        return found

    @property
    def said(self) -> str:
        if not self.is_judged:
            return NOTHING
        return "; ".join(self.misses) or ("met, far better" if self.is_far_better else "met")


def verdict(experiment: Experiment, point: str, runs_of: RunsOf) -> PointVerdict:
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
    return PointVerdict(
        point,
        best,
        quickest,
        ratio(ours, others[best], of.THROUGHPUT),
        ratio(ours, others[quickest], of.TTFT_MEAN),
    )


def verdicts(experiment: Experiment, runs_of: RunsOf) -> list[PointVerdict]:
    return [verdict(experiment, point.name, runs_of) for point in experiment.points]


def curve(experiment: Experiment, run: str, measure: Measure, runs_of: RunsOf) -> list[float | None]:
    """Medians, in the order of the points."""
    return [median_of(runs_of(experiment, point.name, run), measure) for point in experiment.points]


def bends(values: Sequence[float | None]) -> float | None:
    """Depth to which a curve falls below its earlier maximum, as a ratio; None if it does not bend."""
    highest, deepest = 0.0, 1.0
    for value in values:
        if value is not None:
            highest = max(highest, value)
            deepest = min(deepest, value / highest if highest else 1.0)
    return deepest if deepest < BENDS else None


def goodput(experiment: Experiment, run: str, bound_s: float, runs_of: RunsOf) -> float | None:
    """Highest throughput over all loads whose TTFT p90 is within the bound; None where no load qualifies."""
    rates = curve(experiment, run, of.THROUGHPUT, runs_of)
    waits = curve(experiment, run, of.TTFT_P90, runs_of)
    held = [rate for rate, wait in zip(rates, waits, strict=True) if rate and wait is not None and wait <= bound_s]
    return max(held, default=None)


def all_goodputs(experiment: Experiment, bound_s: float, runs_of: RunsOf) -> Mapping[str, float | None]:
    return {name: goodput(experiment, name, bound_s, runs_of) for name in experiment.run_names}


def of_the_best(found: Mapping[str, float | None]) -> float | None:
    """Goodput of the default as a share of the best baseline's; None without either."""
    best = max((each or 0.0 for name, each in found.items() if name in BASELINES), default=0.0)
    ours = found.get(OURS)
    return ours / best if best and ours is not None else None
