"""`nightside results placement`: plays the evaluation of the default placement, and writes its page and its plots."""

from __future__ import annotations

from pathlib import Path

import click

from loadgen.studies.commands import options, play_chosen, write
from loadgen.studies.placement.held_out import LOOK
from loadgen.studies.placement.page import page_of
from loadgen.studies.placement.plan import evaluation


@click.command()
@options("traces", "full", "look", "out", "cache", "jobs", "only")
def placement(
    *, traces: Path | None, full: bool, look: bool, out: Path | None, cache_folder: Path, jobs: int | None,
    only: tuple[str, ...],
) -> None:  # fmt: skip
    """Compare the default placement with other routers' rules on every workload and load, in OUT/placement.md.

    Cells that were played before, of the same code and the same files, are not played again: stop it and go on at will.

    Exit codes: 0 every cell was played, 1 some could not be (the page names them) or a file cannot be read, 2 the
    command was used wrongly.
    """
    if look and not LOOK.expected:
        raise click.UsageError("--look: write down first what is expected of them, in held_out.yaml")
    plan = evaluation(traces, full=full, look=look)
    chosen, found = play_chosen(plan.experiments, only, out, cache_folder, jobs)
    write(out, page_of(plan, found, set(chosen) if only else None), failures=found.failures)
