"""`nightside results balanceroute`: compares the decode tier with BalanceRoute, and writes its page and plots."""

from __future__ import annotations

import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import click

from loadgen.studies.balanceroute.loads import LOADS, present
from loadgen.studies.balanceroute.page import ASIDE, page_of, rows_of
from loadgen.studies.balanceroute.plan import settings
from loadgen.studies.balanceroute.tables import ResultReader
from loadgen.studies.balanceroute.world import cell_of
from loadgen.studies.cells import Cell
from loadgen.studies.commands import FOLDER, options, read_json, refuse_over_the_whole, write
from loadgen.studies.predictors.command import table_of_recorded
from loadgen.studies.progress import played_whole
from loadgen.studies.recordings import find_file
from loadgen.traces.files import TraceError

_TABLE_3 = "Table 3"


@click.command()
@options("traces", "quick", "look")
@click.option(
    "--predictors/--no-predictors", default=True, help="Score predictors as well (Table 3); needs the extra `fit`."
)
@options("out", "cache", "jobs", "json")
def balanceroute(
    *, traces: Path | None, quick: bool, look: bool, predictors: bool, out: Path | None, cache_folder: Path,
    jobs: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Compare the decode tier with BalanceRoute's published figures, in OUT/balanceroute.md.

    Cells that were played before, of the same code and the same files, are not played again: stop it and go on at will.
    What a tick costs is taken from OUT/decode.json, where `nightside bench decode --json` has put it.

    Exit codes: 0 all was played, 1 something cannot be read, 2 the command was used wrongly.
    """
    if quick:
        refuse_over_the_whole("--quick", out)
    if look and not ASIDE.expected:
        raise click.UsageError("--look: write down first what is expected of them, in aside.yaml")
    ticks = read_json((out or FOLDER) / "decode.json")
    names = present(traces)
    try:
        cells = [cell_of(each, traces) for each in settings(names, quick=quick, look=look)]
        if predictors and traces and find_spec("sklearn"):
            cells.append(_table_3(traces))
        results = dict(played_whole(cells, cache_folder, jobs))
    except (TraceError, OSError) as error:
        raise click.ClickException(str(error)) from error
    table_3 = results.pop(_TABLE_3, {}).get("text")
    reader = ResultReader(results, quick)
    pages = page_of(reader, names, look=look, table_3=table_3, ticks=ticks)
    write(out, pages, json.dumps(rows_of(reader), indent=2) if as_json else None)


def _table_3(traces: Path) -> Cell:
    files = [find_file(traces, pattern) for load in present(traces) for pattern in LOADS[load].patterns]
    return Cell(_TABLE_3, _TABLE_3, partial(table_of_recorded, traces), _TABLE_3, tuple(files))
