"""Page of the default placement: the aims, where they are missed and by how much, then every figure. Every sentence is
derived from figures."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from loadgen.pages.markdown import listed
from loadgen.studies.cells import Results
from loadgen.studies.experiments import Experiment
from loadgen.studies.experiments import runs_of as runs_in
from loadgen.studies.placement import curves, held_out, judgement, tables
from loadgen.studies.placement.constants import Constant
from loadgen.studies.placement.judgement import verdicts
from loadgen.studies.placement.plan import SEEDS_FULL, PlacementEvaluation
from loadgen.studies.placement.reasons import reason_of
from loadgen.studies.placement.systems import OURS, STRONGEST
from loadgen.studies.rendering import render


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
    text = render(
        "placement/page.j2", plan=plan, played=played, found=found, told=told, judged=judged, j=judgement,
        misses=[f"{each.point}: {listed(each.misses)}. {reason_of(each.point)}" for each in judged if each.misses],
        failed=[f"{title}: {' '.join(reason.split())}" for title, reason in sorted(results.failures.items())],
        lacking=f" Not found, and left out: {listed(missing)}." if missing else "", ours=OURS, strongest=STRONGEST,
        seeds_full=SEEDS_FULL, runs_of=runs_of, workloads=workloads, sweeps=sweeps,
        spikes=[each for each in plan.spikes if is_played(each.experiment)], tried=tried, bent=curves.bent,
        loads=curves.loads, goodputs=curves.goodputs, spike_table=curves.spike_table, about=tables.about,
        verdict_table=tables.verdict_table, beside_the_paper=tables.beside_the_paper, exactness=tables.exactness,
        exact_gain_min=tables.EXACT_GAIN_MIN, constant_table=tables.constant_table, everything=tables.everything,
        held=held_out, held_out=[(each, verdicts(each.experiment, runs_of)) for each in plan.held_out],
    )  # fmt: skip
    return {"placement.md": text, **curves.sweep_plots(sweeps, runs_of)}
