"""The tables of the page: the default beside the best baseline, the gain of exactness, each constant, every figure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from loadgen.figures import Figures
from loadgen.pages.markdown import NOTHING, bullets, listed, table
from loadgen.studies import numbers as of
from loadgen.studies.numbers import measured, number, percent, ratio, seconds_of, spread_times, times
from loadgen.studies.placement.held_out import EXPECTED, FOUND
from loadgen.studies.placement.judgement import ALIKE, RunsOf, Verdict, verdicts
from loadgen.studies.placement.plan import Evaluation, Series
from loadgen.studies.placement.systems import BEFORE, LLM_D, LLM_D_EXACT, OURS, OURS_EXACT, SKYWALKER
from loadgen.studies.skywalker.reader import Section

EXACT_GAIN_MIN = 0.03
"""Minimum throughput gain that a live feed of engines' caches would have to give."""

_VERDICT_HEAD = ("point", "ours: requests/s", "TTFT mean", "p90", "hits", "best other", "throughput, of its",
                 "quickest of the best", "mean TTFT, of its", "aims")  # fmt: skip


def verdict_table(title: str, several: Sequence[tuple[Series, Sequence[Verdict]]], runs_of: RunsOf) -> Section:
    rows = [_verdict(series, each, runs_of) for series, told in several for each in told]
    notes = [f"{series.title}: {series.note}" for series, _ in several if series.note]
    parts = [f"## {title}\n", table(_VERDICT_HEAD, rows), *([bullets(notes)] if notes else [])]
    return Section("\n".join(parts))


def _verdict(series: Series, each: Verdict, runs_of: RunsOf) -> tuple[str, ...]:
    ours = runs_of(series.experiment, each.point, OURS)
    cells = [number(measured(ours, of.THROUGHPUT)), seconds_of(measured(ours, of.TTFT_MEAN))]
    cells += [seconds_of(measured(ours, of.TTFT_P90)), percent(measured(ours, of.HITS))]
    cells += [each.best, spread_times(each.throughput, 3), each.quickest, spread_times(each.wait)]
    return each.point, *cells, _said(each)


def _said(each: Verdict) -> str:
    if not each.is_judged:
        return NOTHING
    if each.misses:
        return "; ".join(each.misses)
    return "met, far better" if each.is_far_better else "met"


def beside_the_paper(series: Sequence[Series], runs_of: RunsOf) -> Section:
    """Table of the default beside SkyWalker's rules, as published and as the earlier default."""
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
    text = "## Beside the paper's own rules\n\nOurs, as ratios to SkyWalker's published rule and to our default before"
    return Section(f"{text}. {told}\n\n{table(head, rows)}")


def exactness(series: Sequence[Series], runs_of: RunsOf) -> Section:
    """Table of systems that know the engines' caches exactly, beside systems that remember the requests that they
    sent."""
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
    text = "\n".join(
        [
            "## What exactness is worth\n",
            "The same rule in gateways that know what each engine has cached, or is about to, instead of remembering"
            " what they sent where; as ratios to those that remember. No live feed can be more exact than that, and"
            f" one is built only for a gain above {EXACT_GAIN_MIN:.0%}: ours has it on {listed(worth) or 'none'}.\n",
            table(head, rows),
        ]
    )
    return Section(text)


def sensitivity(plan: Evaluation, runs_of: RunsOf, played: Collection[str] | None) -> Section:
    parts = ["## Constants\n", "Each alone, over a decade: throughput and mean TTFT as ratios to the default's.\n"]
    for constant in plan.constants:
        tried = [each for each in plan.sensitivity[constant.key] if played is None or each.name in played]
        if not tried:
            continue
        machines = [f"{name}: {value}" for name, value in (("H100", constant.on_h100), ("L4", constant.on_l4)) if value]
        rows = []
        for value in constant.values:
            cells = []
            for experiment in tried:
                (point,) = experiment.points
                runs, base = (runs_of(experiment, point.name, each) for each in (value, constant.default))
                cells += [times(ratio(runs, base, of.THROUGHPUT), 3), times(ratio(runs, base, of.TTFT_MEAN))]
            rows.append((f"{value} (default)" if value == constant.default else value, *cells))
        head = [cell for each in tried for cell in (f"{each.points[0].name}: throughput", "mean TTFT")]
        parts += [f"### `placement.{constant.key}`\n", f"{constant.what} {'; '.join(machines)}".rstrip() + "\n"]
        parts.append(table((constant.key, *head), rows))
    if not plan.constants:
        parts.append("None are named.\n")
    return Section("\n".join(parts))


def unseen(plan: Evaluation, runs_of: RunsOf) -> Section:
    """Section of held-out workloads, with the results that were expected before."""
    if not plan.held_out:
        return Section("## Held out\n\nTwo workloads are kept aside, and were not played for this page.\n")
    several = [(each, verdicts(each.experiment, runs_of)) for each in plan.held_out]
    section = verdict_table("Held out", several, runs_of)
    return Section(
        f"{section.text}\nExpected before they were played: {EXPECTED or 'nothing was written down.'}\n\n{FOUND}\n"
    )


_HEAD = ("system", "requests/s", "of ours", "TTFT mean, s", "of ours", "p50", "p90", "whole p50, s", "hits",
         "prefilled tokens a request", "away", "busiest / mean", "failed")  # fmt: skip


def everything(series: Sequence[Series], runs_of: RunsOf) -> Section:
    parts = ["## Every figure\n"]
    for each in series:
        (point,) = each.experiment.points
        rows = [_row(each, point.name, name, runs_of) for name in each.experiment.run_names]
        parts += [f"### {each.title}\n", table(_HEAD, rows)]
    return Section("\n".join(parts))


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
