"""`nightside results token-budget`: compares pools by length with the token-budget paper, and writes the page."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from loadgen.studies.progress import played_whole
from loadgen.studies.token_budget.page import NAME, page_of
from loadgen.studies.token_budget.plan import cells
from loadgen.studies.token_budget.tables import Reader
from loadgen.studies.token_budget.workloads import present

_FOLDER = Path("docs/results")
ELSEWHERE = {
    "token-budget-live.md": "Live: a burst of long prompts beside short chat",
}
"""Sections that other commands have written beside the page, by their files."""


@click.command("token-budget")
@click.option(
    "--traces",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Read recorded traces from this folder.",
)
@click.option("--quick", is_flag=True, help="Run a few requests per cell, as a smoke test; needs -o.")
@click.option("-o", "--out", type=click.Path(file_okay=False, path_type=Path),
              help=f"Write the page and its plot into this folder; default: {_FOLDER}.")  # fmt: skip
@click.option("--cache", "cache_folder", type=click.Path(file_okay=False, path_type=Path), default="build/results",
              show_default=True, help="Keep finished cells in this folder.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), help="Run this many processes, instead of one per core.")
@click.option("--json", "as_json", is_flag=True, help="Print every cell's figures as JSON as well.")
def token_budget(
    *, traces: Path | None, quick: bool, out: Path | None, cache_folder: Path, jobs: int | None, as_json: bool
) -> None:
    """Compare pools by length with the token-budget paper's figures, in OUT/token-budget.md.

    Cells that were played before, of the same code and the same files, are not played again: stop it and go on at will.

    Exit codes: 0 all was played, 1 something cannot be read, 2 the command was used wrongly.
    """
    if quick and out is None:
        raise click.UsageError(
            f"--quick makes figures that say nothing, and {_FOLDER} holds real ones: say with -o where to"
        )
    out, names = out or _FOLDER, present(traces)
    try:
        found = played_whole([each.cell(traces) for each in cells(names, quick=quick)], cache_folder, jobs)
    except OSError as error:
        raise click.ClickException(str(error)) from error
    out.mkdir(parents=True, exist_ok=True)
    for name, text in page_of(Reader(found, names, quick=quick), _elsewhere(out)).items():
        (out / name).write_text(text, encoding="utf-8")
    rows = [{**asdict(cell), **figures} for cell, figures in found.items()]
    click.echo(json.dumps(rows, indent=2) if as_json else f"{out / NAME}")


def _elsewhere(out: Path) -> dict[str, str]:
    return {
        title: (out / name).read_text(encoding="utf-8") for name, title in ELSEWHERE.items() if (out / name).exists()
    }
