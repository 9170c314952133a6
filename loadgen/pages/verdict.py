"""Computes the verdicts that open a report: the best run and its lead, for throughput, first tokens, prefix hits and
failures.

It compares figures and draws no further conclusion; small differences count as the same. A run that loses more than 1 %
of its requests is never the quickest beside one that does not, since lost requests have no first token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadgen.figures import Figures

SAME_WITHIN = 0.02
POINTS_WITHIN = 0.005
LOST_MAX = 0.01
"""Share of failed or unfinished requests above which a run is excluded from measures of answered requests, unless every
run is above it."""
_TIMES_FROM = 2.0


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure by which runs are compared."""

    title: str
    value_of: Callable[[Figures], float | None]
    """Value of the figure, from a run's total."""
    shown: Callable[[float], str]
    more_is_better: bool
    is_share: bool = False
    """Compared by percentage points, not by ratio."""
    is_of_answered: bool = False
    """True for figures that cover answered requests only, so that lost requests do not count."""

    def counts(self, total: Figures) -> bool:
        return not self.is_of_answered or (_lost(total) or 0.0) <= LOST_MAX

    def is_same(self, value: float, other: float) -> bool:
        within = POINTS_WITHIN if self.is_share else SAME_WITHIN * max(abs(value), abs(other))
        return abs(value - other) <= within

    def difference(self, value: float, reference: float) -> str:
        """`+12 %`, `× 3.1` where it is large, `−2.9 points` of a share."""
        if self.is_share:
            return f"{_sign(value - reference)}{abs(value - reference) * 100:.1f}\u00a0points"
        if not reference:
            return ""
        factor = value / reference
        if factor >= _TIMES_FROM or factor <= 1 / _TIMES_FROM:
            return f"×\u00a0{factor:.2g}" if factor < 10 else f"×\u00a0{factor:.0f}"
        return f"{_sign(factor - 1)}{abs(factor - 1) * 100:.0f}\u00a0%"


@dataclass(frozen=True, slots=True)
class MeasureVerdict:
    """Result of one measure over all runs."""

    title: str
    answer: str
    """The best figure."""
    best: str
    """Name of the run with the best figure."""
    others: tuple[str, ...]
    """Differences of the next best and of the last run from the best."""


def verdicts(runs: Sequence[Figures]) -> list[MeasureVerdict]:
    return [_verdict(measure, runs) for measure in _MEASURES]


def _verdict(measure: Measure, runs: Sequence[Figures]) -> MeasureVerdict:
    title = measure.title if len(runs) > 1 else _of_one(measure.title)
    counting = [run for run in runs if measure.counts(run["total"])]
    known = _known(measure, counting)
    losing = [_losing(run, is_left_out=bool(known)) for run in runs if not measure.counts(run["total"])]
    known = known or _known(measure, runs)
    if not known:
        return MeasureVerdict(title, "–", "not measured", tuple(losing))
    ranked = sorted(known, key=lambda pair: pair[1], reverse=measure.more_is_better)
    value = ranked[0][1]
    leaders = [name for name, other in ranked if measure.is_same(value, other)]
    beaten = [pair for pair in ranked if pair[0] not in leaders]
    told = beaten if len(beaten) < 2 else [beaten[0], beaten[-1]]
    others = (f"{name} {measure.shown(other)} ({measure.difference(other, value)})" for name, other in told)
    return MeasureVerdict(title, measure.shown(value), _named(leaders, len(runs)), (*others, *losing))


def _of_one(title: str) -> str:
    """Title of a measure without its superlative, for a single run."""
    return title.removeprefix("Lowest ") if title.startswith("Lowest ") else title.split(" ", 1)[1].capitalize()


def _known(measure: Measure, runs: Sequence[Figures]) -> list[tuple[str, float]]:
    """Known values by run name."""
    found = [(run["name"], measure.value_of(run["total"])) for run in runs]
    return [(name, value) for name, value in found if value is not None]


def _losing(run: Figures, *, is_left_out: bool) -> str:
    lost = f"lost {_in_percent(_lost(run['total']) or 0.0)}"
    return f"{run['name']} is left out: it {lost}" if is_left_out else f"{run['name']} {lost}"


def _named(leaders: Sequence[str], runs: int) -> str:
    if runs == 1:
        return ""
    if len(leaders) == runs:
        return "about the same in all runs"
    return " and ".join(leaders) if len(leaders) < 3 else f"{leaders[0]} and {len(leaders) - 1} others"


def _sign(value: float) -> str:
    return "+" if value >= 0 else "−"


def _quantile(kind: str, name: str) -> Callable[[Figures], float | None]:
    return lambda total: None if total[kind] is None else total[kind][name] / 1000


def _lost(total: Figures) -> float | None:
    return (total["failed"] + total["unfinished"]) / total["requests"] if total["requests"] else None


def _hits(total: Figures) -> float | None:
    """Prefix hit rate of the engines, or of the answers' usage where engines report none."""
    rate: float | None = total["cached_share"] if total["prefix_hit_rate"] is None else total["prefix_hit_rate"]
    return rate


def _in_seconds(value: float) -> str:
    return f"{value:.3g}\u00a0s" if value < 100 else f"{value:,.0f}\u00a0s"


def _in_percent(value: float) -> str:
    return f"{value * 100:.1f}\u00a0%"


_MEASURES = (
    Measure("Most output tokens", lambda total: total["tokens_per_s"], lambda value: f"{value:,.0f}\u00a0/s", True),
    Measure("Lowest TTFT, p90", _quantile("ttft_ms", "p90"), _in_seconds, False, is_of_answered=True),
    Measure("Lowest TTFT, p50", _quantile("ttft_ms", "p50"), _in_seconds, False, is_of_answered=True),
    Measure("Most prefix hits", _hits, _in_percent, True, is_share=True, is_of_answered=True),
    Measure("Fewest failed or unfinished", _lost, _in_percent, False, is_share=True),
)
