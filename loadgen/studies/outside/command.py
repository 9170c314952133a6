"""`nightside results outside`: has tools of other projects measure a mesh, and writes the page."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadgen.bench.relay.machine import describe_machine
from loadgen.demo.processes import DemoFailure
from loadgen.studies.commands import options, refuse_over_the_whole, tell, write
from mesh.values import parse_duration_ns

if TYPE_CHECKING:
    from loadgen.studies.outside.tools import ToolRun

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
    from loadgen.studies.outside.outcomes import (  # noqa: PLC0415 - most commands need no mesh
        kept_soak,
        missing_runs,
        outcome_in,
    )
    from loadgen.studies.outside.page import page_of  # noqa: PLC0415
    from loadgen.studies.outside.playing import is_soak_of, play_outside  # noqa: PLC0415
    from loadgen.studies.outside.soaking import play_soak  # noqa: PLC0415
    from loadgen.studies.outside.tools import TOOLS  # noqa: PLC0415

    names = [tool.name for tool in TOOLS]
    if only:
        refuse_over_the_whole("--only", out)
    if (bool(only), kept, soak is not None).count(True) > 1:
        raise click.UsageError("--only, --kept and --soak each say what is started: give one of them")
    whole_s, machine = parse_duration_ns(SOAK_TIME) / _SECOND_NS, describe_machine()
    if soak is not None:
        if soak != whole_s:
            refuse_over_the_whole("--soak", out)
        _refuse_without("--soak", missing_runs(RUNS_KEPT), out)
    elif kept or is_soak_of(RUNS_KEPT, machine):
        before = kept_soak(RUNS_KEPT)
        if before is not None and before.soak.seconds != whole_s:
            refuse_over_the_whole(f"the soak of {before.soak.seconds:g} s in {RUNS_KEPT}", out)
    if unknown := set(only) - set(names):
        raise click.UsageError(f"no such tool: {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
    try:
        if soak is not None:
            play_soak(RUNS_KEPT, soak, machine, tell)
        elif not kept:
            play_outside(RUNS_KEPT, only or names, machine, tell)
        outcome = outcome_in(RUNS_KEPT)
    except (DemoFailure, OSError) as error:
        raise click.ClickException(str(error)) from error
    missing = [run.title for run in outcome.missing if not only or run.tool.name in only]
    if kept:
        _refuse_without("--kept", outcome.missing, out)
    write(out, {"outside.md": page_of(outcome, TOOLS)})
    if missing:
        raise click.ClickException(f"not run: {'; '.join(missing)}")


def _refuse_without(option: str, missing: Collection[ToolRun], out: Path | None) -> None:
    """Refuse the option where runs are missing, without a place for the page. Raises UsageError."""
    if missing:
        refuse_over_the_whole(f"{option} without {'; '.join(run.title for run in missing)}", out)
