"""Page of the default placement: the aims, where they are missed and by how much, then every figure. Every sentence is
derived from figures."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from loadgen.figures import Figures
from loadgen.pages.markdown import listed
from loadgen.studies.cells import Results
from loadgen.studies.experiments import Experiment
from loadgen.studies.experiments import runs_of as runs_in
from loadgen.studies.numbers import THROUGHPUT, TTFT_MEAN, ratio
from loadgen.studies.placement import curves, judgement
from loadgen.studies.placement.constants import Constant
from loadgen.studies.placement.held_out import LOOK
from loadgen.studies.placement.judgement import verdicts
from loadgen.studies.placement.plan import SEEDS_FULL, PlacementEvaluation, Series
from loadgen.studies.placement.reasons import reason_of
from loadgen.studies.placement.systems import OURS, OURS_EXACT, SKYWALKER, STRONGEST
from loadgen.studies.rendering import render

EXACT_GAIN_MIN = 0.03
"""Minimum throughput gain that a live feed of engines' caches would have to give."""


def page_of(plan: PlacementEvaluation, results: Results, played: Collection[str] | None = None) -> dict[str, str]:
    """Contents by file name: the page and its plots. `played` names the experiments that were selected, all of them if
    it is not given; sections that need others are left out."""
    runs_of = partial(runs_in, results)

    def is_played(experiment: Experiment) -> bool:
        return played is None or experiment.name in played

    def tried(constant: Constant) -> list[Experiment]:
        return [each for each in plan.sensitivity[constant.key] if is_played(each)]

    workloads, sweeps, cases = (
        [each for each in several if is_played(each.experiment)]
        for several in (plan.workloads, plan.sweeps, plan.cases)
    )
    titles = ("On every workload", "At every load", "Whatever else comes")
    found = {
        title: [(each, verdicts(each.experiment, runs_of)) for each in several]
        for title, several in zip(titles, (workloads, sweeps, cases), strict=True)
    }
    told = [one for several in found.values() for _, verdicts_ in several for one in verdicts_]
    judged = [each for each in told if each.is_judged]
    files = (("Mooncake's trace", plan.traces.mooncake), ("agentic sessions", plan.traces.sessions))
    missing = [name for name, file in files if file is None]

    def runs_at(series: Series, name: str) -> list[Figures]:
        """Runs of a series with one point."""
        return runs_of(series.experiment, series.experiment.points[0].name, name)

    beside = {
        each.title: (
            ratio(runs_at(each, OURS), runs_at(each, SKYWALKER), THROUGHPUT),
            ratio(runs_at(each, OURS), runs_at(each, SKYWALKER), TTFT_MEAN),
        )
        for each in workloads
    }
    exact = {each.title: ratio(runs_at(each, OURS_EXACT), runs_at(each, OURS), THROUGHPUT) for each in workloads}
    text = render(
        "placement/page.j2", plan=plan, played=played, found=found, told=told, judged=judged, j=judgement,
        misses=[f"{each.point}: {listed(each.misses)}. {reason_of(each.point)}" for each in judged if each.misses],
        failed=[f"{title}: {' '.join(reason.split())}" for title, reason in sorted(results.failures.items())],
        lacking=f" Not found, and left out: {listed(missing)}." if missing else "", ours=OURS, strongest=STRONGEST,
        seeds_full=SEEDS_FULL, runs_of=runs_of, workloads=workloads, sweeps=sweeps,
        spikes=[each for each in plan.spikes if is_played(each.experiment)], tried=tried, bent=curves.bent,
        plain=curves.plain, runs_at=runs_at, exact_gain_min=EXACT_GAIN_MIN,
        better=sum(one.median >= 1 and wait.median <= 1 for one, wait in beside.values() if one and wait),
        worse=[title for title, (one, wait) in beside.items() if one and wait and one.median < 1 - judgement.ALIKE],
        worth=[f"{title} (× {gain.median:.3f})" for title, gain in exact.items()
               if gain and gain.median > 1 + EXACT_GAIN_MIN],
        look=LOOK, held_out=[(each, verdicts(each.experiment, runs_of)) for each in plan.held_out],
    )  # fmt: skip
    return {"placement.md": text, **curves.sweep_plots(sweeps, runs_of)}
