"""`nightside results batch-day`: plays recorded days with batches in virtual time, and writes the page."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click
from msgspec import to_builtins

from loadgen.bench.relay.machine import describe_machine
from loadgen.studies.batches import day_page
from loadgen.studies.batches.day import LOADS, DayCell, DayWork, play
from loadgen.studies.cells import Cell
from loadgen.studies.commands import options, refuse_over_the_whole, write
from loadgen.studies.progress import played_whole
from loadgen.studies.recordings import find_file
from loadgen.traces.files import TraceError

_QUICK_DAY_S = 40


@click.command("batch-day")
@options("traces", "quick", "out", "cache", "jobs")
def batch_day(*, traces: Path | None, quick: bool, out: Path | None, cache_folder: Path, jobs: int | None) -> None:
    """Play recorded days with files of requests in virtual time, in OUT/batch_day.md; some minutes of each core.

    Exit codes: 0 all was played, 1 something cannot be read, 2 the command was used wrongly.
    """
    if quick:
        refuse_over_the_whole("--quick", out)
    day = {"day_s": _QUICK_DAY_S} if quick else {}
    try:
        cells = [_cell(DayCell(load, work, **day), find_file(traces, load.curve)) for load in LOADS for work in DayWork]
        found = played_whole(cells, cache_folder, jobs)
    except (TraceError, OSError) as error:
        raise click.ClickException(str(error)) from error
    write(out, {"batch_day.md": day_page.page_of(found, describe_machine())})


def _cell(played: DayCell, curve: Path) -> Cell:
    place = (played.load.name, played.work)
    return Cell(place, f"{played}", partial(play, played, curve), to_builtins(played), (curve,))
