"""`nightside results skywalker`: repeats SkyWalker's evaluation, and writes its page and its plots."""

from __future__ import annotations

from pathlib import Path

import click

from loadgen.studies.commands import FOLDER, options, play_chosen, read_json, write
from loadgen.studies.experiments import ScenarioCell
from loadgen.studies.skywalker.best_hits import BestHits, best_hits
from loadgen.studies.skywalker.page import SLOTS, page_of
from loadgen.studies.skywalker.plan import SkyWalkerEvaluation, evaluation, find_traces


@click.command()
@options("traces", "full", "out", "cache", "jobs", "only")
def skywalker(
    *, traces: Path | None, full: bool, out: Path | None, cache_folder: Path, jobs: int | None, only: tuple[str, ...]
) -> None:
    """Repeat SkyWalker's evaluation, in OUT/skywalker.md; fifteen minutes of two cores.

    Cells that were played before, of the same code and the same files, are not played again: stop it and go on at will.

    Exit codes: 0 every cell was played, 1 some could not be (the page names them) or a file cannot be read, 2 the
    command was used wrongly.
    """
    plan = evaluation(find_traces(traces), full=full)
    chosen, found = play_chosen(plan.experiments, only, out, cache_folder, jobs)
    others = {slot: read_json((out or FOLDER) / f"{slot}.json") for slot in SLOTS}
    write(out, page_of(plan, found, others, chosen, _offline(plan)), failures=found.failures)


def _offline(plan: SkyWalkerEvaluation) -> dict[str, list[BestHits]]:
    """Hit rates without engines, by workload and seed."""
    run, *_ = plan.fig8.runs
    return {
        point.name: [best_hits(ScenarioCell("fig6", point, run, seed).scenario()) for seed in plan.seeds]
        for point in plan.fig6
    }
