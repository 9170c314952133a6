"""Assembles the page of the default placement from its sections: the aims, where they are missed and by how much, then
every figure. Every sentence is derived from figures."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from loadgen.pages.markdown import bullets, listed
from loadgen.studies.cells import Results
from loadgen.studies.experiments import runs_of as runs_in
from loadgen.studies.placement.curves import goodputs, spikes, sweeps
from loadgen.studies.placement.judgement import (
    ALIKE,
    FAR_THROUGHPUT,
    FAR_WAIT,
    THROUGHPUT_MIN,
    WAIT_MAX,
    Verdict,
    verdicts,
)
from loadgen.studies.placement.plan import SEEDS_FULL, Evaluation, Series
from loadgen.studies.placement.reasons import reason_of
from loadgen.studies.placement.systems import OURS, STRONGEST
from loadgen.studies.placement.tables import (
    beside_the_paper,
    everything,
    exactness,
    sensitivity,
    unseen,
    verdict_table,
)
from loadgen.studies.skywalker.reader import Section


def page_of(plan: Evaluation, results: Results, played: Collection[str] | None = None) -> dict[str, str]:
    """Contents by file name: the page and its plots. `played` names the experiments that were selected, all of them if
    it is not given; sections that need others are left out."""
    runs_of = partial(runs_in, results)

    def is_played(series: Series) -> bool:
        return played is None or series.experiment.name in played

    judged = {
        "On every workload": [each for each in plan.workloads if is_played(each)],
        "At every load": [each for each in plan.sweeps if is_played(each)],
        "Whatever else comes": [each for each in plan.cases if is_played(each)],
    }
    found = {
        title: [(each, verdicts(each.experiment, runs_of)) for each in several] for title, several in judged.items()
    }
    sections = [
        _aims([one for several in found.values() for _, told in several for one in told]),
        *(verdict_table(title, several, runs_of) for title, several in found.items() if several),
    ]
    if judged["At every load"]:
        sections += [sweeps(judged["At every load"], runs_of), goodputs(judged["At every load"], runs_of)]
    if calm := [each for each in plan.spikes if played is None or each.experiment.name in played]:
        sections.append(spikes(calm, runs_of))
    if judged["On every workload"]:
        sections.append(beside_the_paper(judged["On every workload"], runs_of))
        sections.append(exactness(judged["On every workload"], runs_of))
    sections += [sensitivity(plan, runs_of, played), unseen(plan, runs_of)]
    if judged["On every workload"]:
        sections.append(everything(judged["On every workload"], runs_of))
    text = "\n".join([_head(plan, played), *filter(None, [_failed(results)]), *(each.text for each in sections)])
    plots = {name: plot for section in sections for name, plot in section.plots.items()}
    return {"placement.md": text} | plots


def _head(plan: Evaluation, played: Collection[str] | None) -> str:
    partial = "" if played is None else f"\n**A part of it:** only {listed(sorted(played))}.\n"
    missing = [
        name
        for name, file in (("Mooncake's trace", plan.traces.mooncake), ("agentic sessions", plan.traces.sessions))
        if file is None
    ]
    lacking = f" Not found, and left out: {listed(missing)}." if missing else ""
    return f"""# Our default placement, in virtual time

Written by `make results NAME=placement TRACES=dir`; do not edit. [skywalker.md](skywalker.md) holds SkyWalker's
evaluation; this page asks whether what a region file has that says nothing, called `{OURS}` here, is the right thing
for every workload.{lacking}
{partial}
The gateways' own cores decide, on modelled engines. Ratios compare runs that were asked the same, paired by seed: the
median of the seeds, and in brackets the lowest and the highest. Workloads are played by every system with
{SEEDS_FULL} seeds; sweeps, spikes and cases by ours, by what we were, and by the four strongest of the others
({listed(STRONGEST)}) with {len(plan.seeds)}. Others' routers stand in one region, in front of every replica, and let
nobody wait; llm-d's is told how fast the engines prefill, as its users are told to measure it.
"""


def _aims(told: list[Verdict]) -> Section:
    """Section of the aims, with every miss."""
    judged = [each for each in told if each.is_judged]
    met = [each for each in judged if each.is_met]
    far = [each for each in judged if each.is_far_better]
    misses = [f"{each.point}: {listed(each.misses)}. {reason_of(each.point)}" for each in judged if each.misses]
    missing = f" {len(told) - len(judged)} points were not played." if len(judged) < len(told) else ""
    text = f"""## Aims

At every point, a workload at a load, at least {THROUGHPUT_MIN} of the throughput of the baseline that has most of it,
and at most {WAIT_MAX:.1f} of its mean TTFT; of several baselines within {ALIKE:.0%} of the most throughput, the one
that is quickest counts. On half of the points, {FAR_THROUGHPUT} times the throughput or {FAR_WAIT} of the TTFT.

Both are met at {len(met)} of {len(judged)} points, and {len(far)} are far better.{missing}
"""
    return Section(text + ("\nMissed:\n\n" + bullets(misses) if misses else ""))


def _failed(results: Results) -> str:
    if not results.failures:
        return ""
    named = [f"{title}: {' '.join(reason.split())}" for title, reason in sorted(results.failures.items())]
    return f"**{len(named)} cells could not be played**; they count nowhere:\n\n" + bullets(named)
