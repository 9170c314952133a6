"""`nightside results batch`: runs files of requests live, and writes the page. It measures nothing itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from loadgen.bench.relay.client import WrongAnswer
from loadgen.bench.relay.processes import BenchFailure
from loadgen.demo.processes import DemoFailure
from loadgen.interrupts import leaves
from loadgen.studies.batches.beside import play_beside
from loadgen.studies.batches.large_file import KILLED_LINES, KILLS, run_large_file
from loadgen.studies.batches.page import page_of
from loadgen.studies.commands import Machine, options, refuse_over_the_whole, rounds, tell, write

_LINES = 1_000_000


@click.command()
@options("out")
@rounds(3)
@click.option("--lines", type=click.IntRange(1_000, _LINES), default=_LINES, show_default=True,
              help="Set the lines of the large file; fewer need -o.")  # fmt: skip
def batch(*, out: Path | None, rounds: int, lines: int) -> None:
    """Measure large files of requests, and interactive streams beside them, in OUT/batch.md; half an hour.

    Exit codes: 0 everything was played, 1 something could not be, 2 the command was used wrongly.
    """
    if lines != _LINES:
        refuse_over_the_whole("--lines", out)
    machine = Machine()
    try:
        large = asyncio.run(run_large_file(lines, 0, tell))
        killed = asyncio.run(run_large_file(min(lines, KILLED_LINES), KILLS, tell))
        windows = asyncio.run(play_beside(rounds, tell))
    except* (BenchFailure, DemoFailure, WrongAnswer, OSError) as failures:
        raise click.ClickException("\n".join(str(each) for each in leaves(failures))) from failures
    write(out, {"batch.md": page_of(large, killed, windows, machine.described())})
