"""`nightside results token-budget`: compares pools by length with the token-budget paper, and writes the page."""

from __future__ import annotations

import json
from pathlib import Path

import click
from msgspec import to_builtins

from loadgen.studies.commands import FOLDER, options, refuse_over_the_whole, write
from loadgen.studies.progress import played_whole
from loadgen.studies.token_budget.page import FigureReader, page_of
from loadgen.studies.token_budget.plan import cells
from loadgen.studies.token_budget.workloads import present

ELSEWHERE = {
    "token-budget-live.md": "Live: a burst of long prompts beside short chat",
}
"""Sections that other commands have written beside the page, by their files."""


@click.command("token-budget")
@options("traces", "quick", "out", "cache", "jobs", "json")
def token_budget(
    *, traces: Path | None, quick: bool, out: Path | None, cache_folder: Path, jobs: int | None, as_json: bool
) -> None:
    """Compare pools by length with the token-budget paper's figures, in OUT/token-budget.md.

    Cells that were played before, of the same code and the same files, are not played again: stop it and go on at will.

    Exit codes: 0 all was played, 1 something cannot be read, 2 the command was used wrongly.
    """
    if quick:
        refuse_over_the_whole("--quick", out)
    names = present(traces)
    try:
        found = played_whole([each.cell(traces) for each in cells(names, quick=quick)], cache_folder, jobs)
    except OSError as error:
        raise click.ClickException(str(error)) from error
    rows = [{**to_builtins(setting), **figures} for setting, figures in found.items()]
    pages = page_of(FigureReader(found, names, quick=quick), _elsewhere(out or FOLDER))
    write(out, pages, json.dumps(rows, indent=2) if as_json else None)


def _elsewhere(out: Path) -> dict[str, str]:
    return {
        title: (out / name).read_text(encoding="utf-8") for name, title in ELSEWHERE.items() if (out / name).exists()
    }
