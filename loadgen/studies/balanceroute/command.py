"""`nightside results balanceroute`: compares the decode tier with BalanceRoute, and writes its page and plots."""

from __future__ import annotations

import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from loadgen.studies.balanceroute.aside import EXPECTED
from loadgen.studies.balanceroute.loads import LOADS, find_file, present
from loadgen.studies.balanceroute.page import NAME, page_of, rows_of
from loadgen.studies.balanceroute.plan import settings
from loadgen.studies.balanceroute.tables import Reader
from loadgen.studies.balanceroute.world import cell_of
from loadgen.studies.cells import Cell
from loadgen.studies.predictors.command import table_of_recorded
from loadgen.studies.progress import played_whole
from loadgen.traces.files import TraceError

_FOLDER = Path("docs/results")
_TABLE_3 = "Table 3"


@click.command()
@click.option(
    "--traces",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Read recorded traces from this folder.",
)
@click.option("--quick", is_flag=True, help="Run a few requests per cell, as a smoke test; needs -o.")
@click.option("--look", is_flag=True, help="Run the held-out cells as well, once the expected results are written.")
@click.option(
    "--predictors/--no-predictors", default=True, help="Score predictors as well (Table 3); needs the extra `fit`."
)
@click.option("-o", "--out", type=click.Path(file_okay=False, path_type=Path),
              help=f"Write the page and its plots into this folder; default: {_FOLDER}.")  # fmt: skip
@click.option("--cache", "cache_folder", type=click.Path(file_okay=False, path_type=Path), default="build/results",
              show_default=True, help="Keep finished cells in this folder.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), help="Run this many processes, instead of one per core.")
@click.option("--json", "as_json", is_flag=True, help="Print every cell's figures as JSON as well.")
def balanceroute(
    *, traces: Path | None, quick: bool, look: bool, predictors: bool, out: Path | None, cache_folder: Path,
    jobs: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Compare the decode tier with BalanceRoute's published figures, in OUT/balanceroute.md.

    Cells that were played before, of the same code and the same files, are not played again: stop it and go on at will.
    What a tick costs is taken from OUT/decode.json, where `nightside bench decode --json` has put it.

    Exit codes: 0 all was played, 1 something cannot be read, 2 the command was used wrongly.
    """
    if quick and out is None:
        raise click.UsageError(
            f"--quick makes figures that say nothing, and {_FOLDER} holds real ones: say with -o where to"
        )
    if look and not EXPECTED:
        raise click.UsageError("--look: write down first what is expected of them, in aside.py")
    out = out or _FOLDER
    ticks = _ticks(out / "decode.json")
    names = present(traces)
    chosen = settings(names, quick=quick, look=look)
    try:
        cells = [cell_of(each, traces) for each in chosen]
        if predictors and traces and find_spec("sklearn"):
            cells.append(_table_3(traces))
        results = dict(played_whole(cells, cache_folder, jobs))
    except (TraceError, OSError) as error:
        raise click.ClickException(str(error)) from error
    table_3 = results.pop(_TABLE_3, {}).get("text")
    reader = Reader(results, quick)
    out.mkdir(parents=True, exist_ok=True)
    for name, text in page_of(reader, names, look=look, table_3=table_3, ticks=ticks).items():
        (out / name).write_text(text, encoding="utf-8")
    click.echo(json.dumps(rows_of(reader), indent=2) if as_json else f"{out / NAME}")


def _table_3(traces: Path) -> Cell:
    files = [find_file(traces, pattern) for load in present(traces) for pattern in LOADS[load].patterns]
    return Cell(_TABLE_3, _TABLE_3, partial(table_of_recorded, traces), _TABLE_3, tuple(files))


def _ticks(file: Path) -> dict[str, Any] | None:
    """Measurements of a tick; None without a file. Raises ClickException for a file that is not JSON."""
    if not file.exists():
        return None
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise click.ClickException(f"{file}: {error}") from error
    return found
