"""`nightside results succession`: kills leading controllers, and writes the page. It measures nothing itself."""

from __future__ import annotations

from pathlib import Path

import click

from loadgen.demo.processes import DemoFailure
from loadgen.studies.commands import Machine, options, rounds, tell, write
from loadgen.studies.succession.page import page_of
from loadgen.studies.succession.playing import play
from mesh.faults import ConfigError


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@options("out")
@rounds(5, most=100)
def succession(*, files: tuple[Path, ...], out: Path | None, rounds: int) -> None:
    """Measure the time until another controller leads, in OUT/succession.md. FILES of controllers name the stores.

    Exit codes: 0 everything was played, 1 something could not be, 2 the command was used wrongly.
    """
    machine = Machine()
    try:
        found = [play(file, rounds, tell) for file in files]
    except (DemoFailure, ConfigError) as error:
        raise click.ClickException(str(error)) from error
    write(out, {"succession.md": page_of(found, machine.described())})
