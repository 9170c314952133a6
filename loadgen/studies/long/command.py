"""`nightside results long`: plays a long run, and writes the page. It measures nothing itself."""

from __future__ import annotations

import os
from pathlib import Path

import click

from loadgen.demo.processes import DemoFailure
from loadgen.demo.region_files import has_addresses_of_its_own
from loadgen.studies.commands import Machine, options, refuse_full, refuse_over_the_whole, tell, write
from loadgen.studies.long.page import page_of
from loadgen.studies.long.playing import CURVE, HOURS, SPEED, play_long
from loadgen.studies.recordings import find_file
from loadgen.traces.files import TraceError
from mesh.faults import ConfigError


@click.command("long")
@options("traces", "out")
@click.option("--hours", type=click.FloatRange(0.5, 24), default=HOURS, show_default=True,
              help="Set the hours of the recorded day; another number needs -o.")  # fmt: skip
@options("keep")
def long_run(*, traces: Path | None, out: Path | None, hours: float, keep: Path | None) -> None:
    """Play hours of a recorded day live, a minute for each, with random faults, in OUT/long.md.

    Exit codes: 0 it was played, 1 something could not be, 2 the command was used wrongly.
    """
    if hours != HOURS:
        refuse_over_the_whole("--hours", out)
    refuse_full(keep)
    if not has_addresses_of_its_own():
        raise click.ClickException("this system has no 127.x.y.z addresses besides 127.0.0.1, for one name to lead to")
    machine = Machine()
    try:
        record = play_long(hours * 3600 / SPEED, find_file(traces, CURVE), tell, keep)
    except (DemoFailure, TraceError, ConfigError, OSError) as error:
        raise click.ClickException(str(error)) from error
    more = "" if hours == HOURS else f' ARGS="--hours {hours:g}"'
    told = machine.described(), machine.busy_share(), os.cpu_count() or 1
    command = f"make results NAME=long TRACES=dir{more}"
    write(out, {"long.md": page_of(record, *told, command)})
