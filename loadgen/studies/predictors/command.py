"""`nightside results predictors`: evaluates each kind of predictor, and how often it should be asked.

It writes a file only where it is told to.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from loadgen.figures import Figures
from loadgen.studies.commands import options, tell
from loadgen.studies.predictors.workloads import PredictorWorkload, kept_aside, recorded
from loadgen.traces.files import TraceError


@click.command()
@options("traces")
@click.option("--choosing", is_flag=True, help="Use the generated loads on which defaults are chosen.")
@click.option(
    "--requests",
    type=click.IntRange(100),
    default=20_000,
    show_default=True,
    help="Set the requests of each generated load.",
)
@click.option("--refresh", "is_sweep", is_flag=True, help="Compare refresh intervals instead of predictors.")
@click.option("--steps", type=click.IntRange(10), default=3_000, show_default=True, help="Set the steps of --refresh.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON; progress goes to stderr.")
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the table to this file instead of printing it.",
)
def predictors(
    *, traces: Path | None, choosing: bool, requests: int, is_sweep: bool, steps: int, as_json: bool, out: Path | None
) -> None:
    """Compare predictors on recorded loads (BalanceRoute's Table 3), or on those that defaults are chosen on.

    Exit codes: 0 all was measured, 1 something cannot be read or fitted, 2 the command was used wrongly.
    """
    if choosing == (traces is not None):
        raise click.UsageError("name one of --traces and --choosing")
    workloads = kept_aside(requests) if choosing else recorded(traces)
    if not workloads:
        raise click.ClickException(f"{traces}: holds none of the traces that are looked for")
    try:
        text = measured(workloads, steps if is_sweep else None, as_json=as_json)
    except (TraceError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    if out is None:
        click.echo(text)
        return
    try:
        out.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{out} cannot be written: {error.strerror}") from error


def table_of_recorded(traces: Path) -> Figures:
    """Table 3 of the recorded loads, as a cell's figures."""
    return {"text": measured(recorded(traces))}


def measured(workloads: list[PredictorWorkload], sweep_steps: int | None = None, *, as_json: bool = False) -> str:
    """Table 3, or the sweep of R. Raises ClickException where fitting is not installed, TraceError and ValueError."""
    try:
        from loadgen.studies.predictors.refresh import refresh_sweep, sweep_markdown  # noqa: PLC0415 - as below
        from loadgen.studies.predictors.table import as_markdown, table_3  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise click.ClickException(f"{error}: fitting needs the extra `fit` (pip install 'nightside[fit]')") from error

    if sweep_steps is None:
        rows, shown = table_3(workloads, on_progress=tell), as_markdown
    else:
        rows, shown = refresh_sweep(workloads, steps=sweep_steps, on_progress=tell), sweep_markdown
    return json.dumps(rows, indent=2) if as_json else shown(rows).rstrip()
