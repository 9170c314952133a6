"""`nightside results composition`: moves a disaggregated pool under load, and writes the page. It measures nothing
itself."""

from __future__ import annotations

from pathlib import Path

import click

from loadgen.demo.processes import DemoFailure
from loadgen.studies.commands import options, rounds, tell, write


@click.command()
@options("out")
@rounds(2)
def composition(*, out: Path | None, rounds: int) -> None:
    """Measure live what clients see when a disaggregated pool is adopted and returns, in OUT/composition.md; five
    minutes.

    Exit codes: 0 everything was played, 1 something could not be, 2 the command was used wrongly.
    """
    from loadgen.studies.composition.playing import play_composition  # noqa: PLC0415 - most commands need no mesh

    try:
        page = play_composition(rounds, tell)
    except DemoFailure as error:
        raise click.ClickException(str(error)) from error
    write(out, {"composition.md": page})
