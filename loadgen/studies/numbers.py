"""Combines the figures of several seeds: medians with their spread, ratios of runs with equal requests, and their text.

It only counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import geometric_mean, median

from loadgen.figures import Figures
from loadgen.pages.markdown import NOTHING

Measure = Callable[[Figures], float | None]


@dataclass(frozen=True, slots=True)
class Middle:
    """Median of some seeds, and the range of their values."""

    median: float
    low: float
    high: float

    def shown(self, digits: int = 2) -> str:
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}–{self.high:.{digits}f})"


def middle_of(values: Iterable[float | None]) -> Middle | None:
    """Median and range of the values; None where no seed has a value."""
    present = [value for value in values if value is not None]
    return Middle(median(present), min(present), max(present)) if present else None


def inverse(middle: Middle) -> Middle:
    """Inverse of a ratio."""
    return Middle(_over(middle.median), _over(middle.high), _over(middle.low))


def _over(ratio: float) -> float:
    """Inverse of a ratio; infinite for zero, the ratio of a run without any throughput."""
    return 1 / ratio if ratio else inf


def quotient(one: float, other: float) -> float | None:
    """Ratio of two values; None where the divisor is zero, since a run without throughput permits no comparison."""
    return one / other if other else None


def mean_ratio(ratios: Sequence[float]) -> float:
    """Geometric mean of several workloads' ratios, in which a half and a double cancel out."""
    return geometric_mean(ratios) if all(ratios) else 0.0


def measured(runs: Sequence[Figures], measure: Measure) -> Middle | None:
    return middle_of([_value(run, measure) for run in runs])


def ratio(runs: Sequence[Figures], base: Sequence[Figures], measure: Measure) -> Middle | None:
    """Median ratio over the seeds, each of a run to the base's run with the same seed, which has the same requests."""
    pairs = [(_value(run, measure), _value(other, measure)) for run, other in zip(runs, base, strict=True)]
    return middle_of([None if one is None or other is None else quotient(one, other) for one, other in pairs])


def _value(run: Figures, measure: Measure) -> float | None:
    """Value of a run; None where the run was not played."""
    return measure(run) if run else None


def total(key: str) -> Measure:
    """Measure of a figure of all clients together."""
    return lambda run: run["total"][key]


def seconds(kind: str, quantile: str) -> Measure:
    """Measure of a quantile of all clients' times, in seconds."""

    def measure(run: Figures) -> float | None:
        found = run["total"][kind]
        return None if found is None else found[quantile] / 1000

    return measure


THROUGHPUT = total("requests_per_s")
TOKENS = total("tokens_per_s")
TTFT_P50 = seconds("ttft_ms", "p50")
TTFT_MEAN = seconds("ttft_ms", "mean")
TTFT_P90 = seconds("ttft_ms", "p90")
ANSWER_P50 = seconds("duration_ms", "p50")
HITS = total("prefix_hit_rate")
PREFILLED = total("prefilled_tokens_per_request")
FORWARDED = total("forwarded_share")
BUSIEST = total("outstanding_max_to_mean")
OUTSTANDING = total("outstanding_mean")


def median_of(runs: Sequence[Figures], measure: Measure) -> float | None:
    found = measured(runs, measure)
    return found.median if found else None


_BOX = ("p10", "p25", "p50", "p75", "p90", "mean")


def middle_box(runs: Sequence[Figures], kind: str) -> dict[str, float] | None:
    """Each part of a box plot, in seconds, at its median; None where a seed has none, or no seed was played."""
    boxes = [run["total"][kind] for run in runs if run]
    if not boxes or not all(boxes):
        return None
    return {name: median(box[name] for box in boxes) / 1000 for name in _BOX}


# Text of figures, with a dash for missing ones


def number(middle: Middle | None, digits: int = 2) -> str:
    """A median, with the range of the seeds."""
    return NOTHING if middle is None else middle.shown(digits)


def times(middle: Middle | None, digits: int = 2) -> str:
    """A median ratio."""
    return NOTHING if middle is None else f"× {middle.median:.{digits}f}"


def spread_times(middle: Middle | None, digits: int = 2) -> str:
    """A median ratio, with the range of the seeds."""
    return NOTHING if middle is None else f"× {middle.shown(digits)}"


def percent(middle: Middle | None, digits: int = 1) -> str:
    return NOTHING if middle is None else f"{100 * middle.median:.{digits}f} %"


def seconds_of(middle: Middle | None) -> str:
    """Median in seconds, with three significant digits."""
    if middle is None:
        return NOTHING
    return f"{middle.median:.2f}" if middle.median < 10 else f"{middle.median:.1f}"
