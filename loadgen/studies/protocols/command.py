"""`nightside results protocols`: plays BalanceRoute's comparison by several protocols, and writes its page and data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from loadgen.planner.sources import SourceError
from loadgen.studies.balanceroute.loads import LOADS, asked
from loadgen.studies.commands import FOLDER, options, read_json, refuse_over_the_whole, write
from loadgen.studies.progress import played_whole
from loadgen.studies.protocols.page import NAME, page_of
from loadgen.studies.protocols.plan import (
    FULL_CASES,
    FULL_SEEDS,
    LONG_CASES,
    LONG_SEEDS,
    SCALED,
    SEEDS,
    THROW_AWAY,
    all_cells,
    job_of,
    long_cells,
)
from loadgen.studies.protocols.record import read_record, record_of
from loadgen.studies.protocols.scale import scale_of
from loadgen.traces.files import TraceError

DATA = "protocols.json"


@click.command()
@options("traces", "quick")
@click.option("--plan", "is_plan", is_flag=True, help="Write the plan and the loads' measures; run nothing.")
@click.option("--stored", is_flag=True, help="Write the page again from OUT/protocols.json; run nothing.")
@options("out", "cache", "jobs")
def protocols(
    *, traces: Path | None, quick: bool, is_plan: bool, stored: bool, out: Path | None, cache_folder: Path,
    jobs: int | None,
) -> None:  # fmt: skip
    """Compare the decode tier with BalanceRoute's figures by several protocols, in OUT/protocols.md and protocols.json.

    The plan was committed before the one run of its seeds. Finished cells are not played again: stop it and go on at
    will.

    Exit codes: 0 all was played, 1 something cannot be read, 2 the command was used wrongly.
    """
    if quick:
        refuse_over_the_whole("--quick", out)
    if stored:
        document = read_json((out or FOLDER) / DATA)
        if document is None:
            raise click.UsageError(f"--stored: there is no {(out or FOLDER) / DATA}")
    else:
        document = _played(traces, quick, is_plan, cache_folder, jobs)
    try:
        page = page_of(read_record(document), document["loads"])
    except KeyError as error:
        raise click.ClickException(f"{DATA}: there is no {error}") from error
    write(out, {NAME: page, DATA: _text(document)})


def _played(traces: Path | None, quick: bool, is_plan: bool, cache_folder: Path, jobs: int | None) -> dict[str, Any]:
    """Document of the raw data."""
    seeds, long_seeds, full_seeds = ((THROW_AWAY,),) * 3 if quick else (SEEDS, LONG_SEEDS, FULL_SEEDS)
    planned = all_cells(seeds, quick=quick)
    for cases, of_seeds in ((LONG_CASES, long_seeds), (FULL_CASES, full_seeds)):
        planned += long_cells(of_seeds, cases, quick=quick)
    try:
        loads = {each.name: scale_of(asked(LOADS[each.name], traces).later) for each in SCALED}
        cells = [] if is_plan else [job_of(each, traces) for each in planned]
        results = played_whole(cells, cache_folder, jobs)
    except (TraceError, SourceError, OSError) as error:
        raise click.ClickException(str(error)) from error
    record = record_of(results, seeds, long_seeds, full_seeds, quick=quick)
    return {"loads": loads, **record.document()}


def _text(document: dict[str, Any]) -> str:
    """JSON with a line for each run, so that changes can be read."""
    head = {key: value for key, value in document.items() if key != "runs"}
    runs = ",\n".join(json.dumps(each) for each in document["runs"])
    return f'{json.dumps(head)[:-1]}, "runs": [\n{runs}\n]}}\n'
