"""`nightside agreement`: plays one scenario live and simulated on this machine and compares the figures.

It only shows and writes.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from pathlib import Path

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from loadgen.demo.processes import DemoFailure
from loadgen.figures import Figures
from loadgen.interrupts import EXIT_INTERRUPTED, ends_by_signal, leaves
from loadgen.load.agreement import BUSY_SHARE, Agreement
from loadgen.settings import setting
from loadgen.shipped import SCENARIO
from mesh.faults import ConfigError

EXIT_APART = 1
EXIT_UNKNOWN = 3
_SHOWN = ("simulated_median", "simulated_min", "simulated_max", "live_median", "live_min", "live_max")


@click.command()
@click.argument("scenario", type=SCENARIO, default="agreement")
@click.option("--runs", type=click.IntRange(1, 99), default=5, show_default=True, help="Set the number of live runs.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a key of the scenario, as in a.0.b=3; repeatable.",
)
@click.option(
    "-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the result to this file, as JSON."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; progress goes to stderr.")
@click.pass_context
def agreement(
    context: click.Context,
    *,
    scenario: Path,
    runs: int,
    settings: tuple[str, ...],
    out: Path | None,
    as_json: bool,
) -> None:
    """Run SCENARIO live and in simulation, and compare their figures.

    Live runs on a busy machine are shown, but not compared.

    Exit codes: 0 every figure of all regions together agrees, 1 one does not, or it could not be played, 2 the command
    was used wrongly, 3 nothing can be said: no live run had the machine for itself, 130 it was stopped.
    """
    folder = Path(tempfile.mkdtemp(prefix="nightside-agreement-"))
    is_interrupted, complaints = False, []
    try:
        work = Agreement(scenario, dict(map(setting, settings)), folder, Console(stderr=True))
    except ConfigError as error:
        folder.rmdir()
        raise click.ClickException(str(error)) from error
    try:
        is_interrupted = asyncio.run(ends_by_signal(work.compare(runs)))
    except* (ConfigError, DemoFailure) as failures:
        complaints = [str(failure) for failure in leaves(failures)]
    if complaints:
        raise click.ClickException("\n".join([*complaints, f"Logs and region files: {folder}"]))
    shutil.rmtree(folder)
    document = work.document()
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(document, indent=2) + "\n")
    if as_json:
        click.echo(json.dumps(document, indent=2))
    else:
        show(document)
    context.exit(EXIT_INTERRUPTED if is_interrupted else exit_code(document))


def exit_code(document: Figures) -> int:
    """Exit code, as described in the command's help."""
    if not document["quiet_runs"]:
        return EXIT_UNKNOWN
    return 0 if all(row["agrees"] for row in document["metrics"]) else EXIT_APART


def show(document: Figures) -> None:
    table = Table(title=document["scenario"], title_style="bold", box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
    for number, heading in enumerate(("", "simulated", "from", "to", "live", "from", "to", "gap")):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for region, rows in {"all": document["metrics"], **document["regions"]}.items():
        for row in rows:
            values = [row[key] for key in _SHOWN]
            gap = "–" if row["gap"] is None else f"{row['gap']:+.1%}"
            table.add_row(f"{region} {row['metric']}", *map(_shown, values), gap)
        table.add_section()
    console = Console()
    console.print(table)
    shares = ", ".join(
        f"{each['mean_share']:.0%}{' (busy)' if each['busy'] else ''}" if "mean_share" in each else "unknown"
        for each in document["machine"]
    )
    console.print(f"CPU of the machine in use, run by run: {shares or 'unknown'}; busy is over {BUSY_SHARE:.0%}.")
    if left_out := document["live_runs"] - document["quiet_runs"]:
        console.print(
            f"{left_out} of {document['live_runs']} live runs found the machine busy, or could not tell, and count for"
            " nothing."
        )
    console.print(f"Both ran with {document['ran_with']}.")
    console.print(f"A hop costs {(document['overhead_ms'] or {}).get('hop')} ms, measured on the idle mesh.")


def _shown(value: float | None) -> str:
    if value is None:
        return "–"
    digits = 3 if abs(value) < 1 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f}"
