"""The tables of the page: the default beside the best baseline, the gain of exactness, each constant, every figure."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.figures import Figures
from loadgen.pages.markdown import NOTHING, bullets, listed, table
from loadgen.studies import numbers as of
from loadgen.studies.experiments import Experiment
from loadgen.studies.numbers import measured, number, percent, ratio, seconds_of, spread_times, times
from loadgen.studies.placement.constants import Constant
from loadgen.studies.placement.judgement import ALIKE, PointVerdict, RunsOf
from loadgen.studies.placement.plan import Series
from loadgen.studies.placement.systems import BEFORE, LLM_D, LLM_D_EXACT, OURS, OURS_EXACT, SKYWALKER

EXACT_GAIN_MIN = 0.03
"""Minimum throughput gain that a live feed of engines' caches would have to give."""

_VERDICT_HEAD = ("point", "ours: requests/s", "TTFT mean", "p90", "hits", "best other", "throughput, of its",
                 "quickest of the best", "mean TTFT, of its", "aims")  # fmt: skip


def verdict_table(several: Sequence[tuple[Series, Sequence[PointVerdict]]], runs_of: RunsOf) -> str:
    notes = [f"{series.title}: {series.note}" for series, _ in several if series.note]
    found = table(_VERDICT_HEAD, [_verdict(series, each, runs_of) for series, told in several for each in told])
    return f"{found}\n{bullets(notes)}" if notes else found


def _verdict(series: Series, each: PointVerdict, runs_of: RunsOf) -> tuple[str, ...]:
    ours = runs_of(series.experiment, each.point, OURS)
    cells = [number(measured(ours, of.THROUGHPUT)), seconds_of(measured(ours, of.TTFT_MEAN))]
    cells += [seconds_of(measured(ours, of.TTFT_P90)), percent(measured(ours, of.HITS))]
    cells += [each.best, spread_times(each.throughput, 3), each.quickest, spread_times(each.wait)]
    return each.point, *cells, _said(each)


def _said(each: PointVerdict) -> str:
    if not each.is_judged:
        return NOTHING
    if each.misses:
        return "; ".join(each.misses)
    return "met, far better" if each.is_far_better else "met"


def beside_the_paper(series: Sequence[Series], runs_of: RunsOf) -> str:
    """Sentence and table of the default beside SkyWalker's rules, as published and as the earlier default."""
    rows, better, worse = [], 0, []
    for each in series:
        (point,) = each.experiment.points
        ours, *others = (runs_of(each.experiment, point.name, name) for name in (OURS, SKYWALKER, BEFORE))
        cells = []
        for runs in others:
            cells += [spread_times(ratio(ours, runs, of.THROUGHPUT), 3), times(ratio(ours, runs, of.TTFT_MEAN))]
        rows.append((each.title, *cells))
        throughput, wait = ratio(ours, others[0], of.THROUGHPUT), ratio(ours, others[0], of.TTFT_MEAN)
        if throughput is not None and wait is not None:
            better += throughput.median >= 1 and wait.median <= 1
            if throughput.median < 1 - ALIKE:
                worse.append(each.title)
    told = f"It has as much throughput and no longer a mean TTFT on {better} of {len(rows)} workloads"
    told += f", and less throughput on {listed(worse)}." if worse else ", and less throughput on none."
    head = ("workload", f"of {SKYWALKER}: throughput", "mean TTFT", f"of {BEFORE}: throughput", "mean TTFT")
    return f"{told}\n\n{table(head, rows)}"


def exactness(series: Sequence[Series], runs_of: RunsOf) -> str:
    """Workloads on which it is worth it to know the engines' caches exactly, and a table of systems that do, beside
    systems that remember the requests that they sent."""
    rows, worth = [], []
    for each in series:
        (point,) = each.experiment.points
        cells = []
        exactly, remembered = (runs_of(each.experiment, point.name, name) for name in (OURS_EXACT, OURS))
        gain = ratio(exactly, remembered, of.THROUGHPUT)
        if gain is not None and gain.median > 1 + EXACT_GAIN_MIN:
            worth.append(f"{each.title} (× {gain.median:.3f})")
        for exact, plain in ((OURS_EXACT, OURS), (LLM_D_EXACT, LLM_D)):
            one, other = (runs_of(each.experiment, point.name, name) for name in (exact, plain))
            cells += [spread_times(ratio(one, other, of.THROUGHPUT), 3), times(ratio(one, other, of.TTFT_MEAN))]
        rows.append((each.title, *cells))
    head = ("workload", "ours: throughput", "mean TTFT", "llm-d: throughput", "mean TTFT")
    return f"ours has it on {listed(worth) or 'none'}.\n\n{table(head, rows)}"


def about(constant: Constant) -> str:
    machines = [f"{name}: {value}" for name, value in (("H100", constant.on_h100), ("L4", constant.on_l4)) if value]
    return f"{constant.what} {'; '.join(machines)}".rstrip()


def constant_table(constant: Constant, tried: Sequence[Experiment], runs_of: RunsOf) -> str:
    rows = []
    for value in constant.values:
        cells = []
        for experiment in tried:
            (point,) = experiment.points
            runs, base = (runs_of(experiment, point.name, each) for each in (value, constant.default))
            cells += [times(ratio(runs, base, of.THROUGHPUT), 3), times(ratio(runs, base, of.TTFT_MEAN))]
        rows.append((f"{value} (default)" if value == constant.default else value, *cells))
    head = [cell for each in tried for cell in (f"{each.points[0].name}: throughput", "mean TTFT")]
    return table((constant.key, *head), rows)


_HEAD = ("system", "requests/s", "of ours", "TTFT mean, s", "of ours", "p50", "p90", "whole p50, s", "hits",
         "prefilled tokens a request", "away", "busiest / mean", "failed")  # fmt: skip


def everything(series: Series, runs_of: RunsOf) -> str:
    (point,) = series.experiment.points
    return table(_HEAD, [_row(series, point.name, name, runs_of) for name in series.experiment.run_names])


def _row(series: Series, point: str, name: str, runs_of: RunsOf) -> tuple[str, ...]:
    runs, ours = (runs_of(series.experiment, point, each) for each in (name, OURS))
    cells = [number(measured(runs, of.THROUGHPUT)), _of_ours(runs, ours, of.THROUGHPUT, name)]
    cells += [seconds_of(measured(runs, of.TTFT_MEAN)), _of_ours(runs, ours, of.TTFT_MEAN, name)]
    cells += [seconds_of(measured(runs, each)) for each in (of.TTFT_P50, of.TTFT_P90, of.ANSWER_P50)]
    cells += [percent(measured(runs, of.HITS)), number(measured(runs, of.PREFILLED), 0)]
    cells.append(percent(measured(runs, of.FORWARDED)))
    failed = of.median_of(runs, of.total("failed"))
    return name, *cells, number(measured(runs, of.BUSIEST)), NOTHING if failed is None else f"{failed:.0f}"


def _of_ours(runs: Sequence[Figures], ours: Sequence[Figures], measure: of.Measure, name: str) -> str:
    return "" if name == OURS else times(ratio(runs, ours, measure))
