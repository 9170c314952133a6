"""`nightside results capacity`: measures what a gateway carries, and writes the page. It measures nothing itself."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from loadgen.bench.relay.machine import is_core_compiled, usable_cores
from loadgen.bench.relay.main import raise_open_files_limit
from loadgen.bench.relay.processes import BenchFailure
from loadgen.studies.capacity.extrapolation import largest_run
from loadgen.studies.capacity.measuring import measure
from loadgen.studies.capacity.page import page_of
from loadgen.studies.commands import FOLDER, Machine, options, read_json, refuse_over_the_whole, write

SCALE = "scale.json"


@click.command()
@options("quick", "out")
@click.option("--scale", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help=f"Read the simulator's figures from this file; default: {FOLDER / SCALE}.")  # fmt: skip
def capacity(*, quick: bool, out: Path | None, scale: Path | None) -> None:
    """Measure what a gateway, a region and a mesh carry, in OUT/capacity.md; two cores, fifteen minutes.

    Exit codes: 0 everything was measured, 1 something could not be, 2 the command was used wrongly.
    """
    if quick:
        refuse_over_the_whole("--quick", out)
    if len(usable_cores()) < 2:
        raise click.UsageError("two cores are needed, one for gateways and one for engines and clients")
    file = scale or FOLDER / SCALE
    document = read_json(file)
    if document is None:
        raise click.UsageError(f"there is no {file}: name one with --scale, or write it with `make bench-scale`")
    raise_open_files_limit()
    machine = Machine()
    try:
        run = largest_run(document)
    except (ValueError, KeyError) as error:
        raise click.ClickException(f"{file}: {error}") from error
    try:
        found = measure(Console(stderr=True), is_quick=quick)
    except BenchFailure as failure:
        raise click.ClickException(str(failure)) from failure
    command = "make results NAME=capacity" if is_core_compiled() else "nightside results capacity"
    text = page_of(found, run, machine.described(), f"{command} --quick" if quick else command, machine.others_share())
    write(out, {"capacity.md": text})
    if found.faults:
        raise click.ClickException("; ".join(f"{name} was not measured: {why}" for name, why in found.faults.items()))
