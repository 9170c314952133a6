"""`nightside results outside`: has tools of other projects measure a mesh, and writes the page."""

from __future__ import annotations

from pathlib import Path

import click

from loadgen.bench.relay.machine import describe_machine
from loadgen.demo.processes import DemoFailure
from loadgen.studies.commands import options, refuse_over_the_whole, tell, write
from mesh.values import parse_duration_ns

RUNS_KEPT = Path("build/outside")
"""Folder in which reports of the last runs are kept."""
SOAK_TIME = "60m"
"""Time of the soak on the page of the whole."""
_SECOND_NS = 1_000_000_000


def _seconds(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    try:
        return None if value is None else parse_duration_ns(value) / _SECOND_NS
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@options("out")
@click.option("--only", multiple=True, metavar="TOOL", help="Start only runs of these tools; repeatable, and needs -o.")
@click.option(
    "--kept", is_flag=True, help="Start nothing, and write the page of the runs that are kept; all of them, or -o."
)
@click.option(
    "--soak", metavar="TIME", callback=_seconds,
    help="Start nothing but AIPerf for this time while an engine and a gateway are killed in turn; of another time than"
    f" {SOAK_TIME} the page needs -o.",
)  # fmt: skip
def outside(*, out: Path | None, only: tuple[str, ...], kept: bool, soak: float | None) -> None:
    """Run tools of other projects on three regions, in OUT/outside.md; twenty minutes. `make outside` installs
    them. A soak and the other runs are kept apart, and the page is of both.

    Exit codes: 0 everything was played, 1 something could not be, 2 the command was used wrongly.
    """
    from loadgen.studies.outside.outcomes import outcome_in  # noqa: PLC0415 - most commands need no mesh
    from loadgen.studies.outside.page import page_of  # noqa: PLC0415
    from loadgen.studies.outside.playing import play_outside  # noqa: PLC0415
    from loadgen.studies.outside.soaking import play_soak  # noqa: PLC0415
    from loadgen.studies.outside.tools import TOOLS  # noqa: PLC0415

    names = [tool.name for tool in TOOLS]
    if only:
        refuse_over_the_whole("--only", out)
    if (bool(only), kept, soak is not None).count(True) > 1:
        raise click.UsageError("--only, --kept and --soak each say what is started: give one of them")
    if soak is not None and soak != parse_duration_ns(SOAK_TIME) / _SECOND_NS:
        refuse_over_the_whole("--soak", out)
    if unknown := set(only) - set(names):
        raise click.UsageError(f"no such tool: {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
    try:
        if soak is not None:
            play_soak(RUNS_KEPT, soak, describe_machine(), tell)
        elif not kept:
            play_outside(RUNS_KEPT, only or names, describe_machine(), tell)
        outcome = outcome_in(RUNS_KEPT)
    except (DemoFailure, OSError) as error:
        raise click.ClickException(str(error)) from error
    missing = [run.title for run in outcome.missing if not only or run.tool.name in only]
    if (kept or soak is not None) and missing:
        refuse_over_the_whole(f"--{'kept' if kept else 'soak'} without {'; '.join(missing)}", out)
    write(out, {"outside.md": page_of(outcome, TOOLS)})
    if missing:
        raise click.ClickException(f"not run: {'; '.join(missing)}")
