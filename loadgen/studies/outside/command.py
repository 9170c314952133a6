"""`nightside results outside`: has tools of other projects measure a mesh, and writes the page."""

from __future__ import annotations

from pathlib import Path

import click

from loadgen.bench.relay.machine import describe_machine
from loadgen.demo.processes import DemoFailure
from loadgen.studies.commands import options, refuse_over_the_whole, tell, write

RUNS_KEPT = Path("build/outside")
"""Folder in which reports of the last runs are kept."""


@click.command()
@options("out")
@click.option("--only", multiple=True, metavar="TOOL", help="Start only runs of these tools; repeatable, and needs -o.")
@click.option(
    "--kept", is_flag=True, help="Start nothing, and write the page of the runs that are kept; all of them, or -o."
)
def outside(*, out: Path | None, only: tuple[str, ...], kept: bool) -> None:
    """Run tools of other projects on three regions, in OUT/outside.md; twenty minutes. `make outside` installs
    them.

    Exit codes: 0 everything was played, 1 something could not be, 2 the command was used wrongly.
    """
    from loadgen.studies.outside.outcomes import outcome_in  # noqa: PLC0415 - most commands need no mesh
    from loadgen.studies.outside.page import page_of  # noqa: PLC0415
    from loadgen.studies.outside.playing import play_outside  # noqa: PLC0415
    from loadgen.studies.outside.tools import TOOLS  # noqa: PLC0415

    names = [tool.name for tool in TOOLS]
    if only:
        refuse_over_the_whole("--only", out)
    if only and kept:
        raise click.UsageError("--only starts runs, and --kept starts none: give one of them")
    if unknown := set(only) - set(names):
        raise click.UsageError(f"no such tool: {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
    try:
        if not kept:
            play_outside(RUNS_KEPT, only or names, describe_machine(), tell)
        outcome = outcome_in(RUNS_KEPT)
    except (DemoFailure, OSError) as error:
        raise click.ClickException(str(error)) from error
    missing = [run.title for run in outcome.missing if not only or run.tool.name in only]
    if kept and missing:
        refuse_over_the_whole(f"--kept without {'; '.join(missing)}", out)
    write(out, {"outside.md": page_of(outcome, TOOLS)})
    if missing:
        raise click.ClickException(f"not run: {'; '.join(missing)}")
