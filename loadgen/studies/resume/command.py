"""`nightside results resume`: kills engines and regions under load, and writes the page. It measures nothing itself."""

from __future__ import annotations

from pathlib import Path

import click

from loadgen.demo.processes import DemoFailure
from loadgen.studies.commands import FOLDER, Machine, options, tell, write
from loadgen.studies.resume.costs import measure_added, measure_costs
from loadgen.studies.resume.page import page_of
from loadgen.studies.resume.playing import play_all
from loadgen.studies.resume.real_engines import read_measured


@click.command()
@options("out")
@click.option(
    "--seconds",
    type=click.FloatRange(1, 600),
    default=30.0,
    show_default=True,
    help="Kill engines for this many seconds.",
)
@click.option(
    "--forwards",
    type=click.IntRange(2, 200),
    default=100,
    show_default=True,
    help="Set the forwards that a region holds; in one case it holds ten times as many.",
)
@click.option("--rounds", type=click.IntRange(0, 100), default=3, show_default=True,
              help="Set the rounds in which a chunk's cost is measured.")  # fmt: skip
def resume(*, out: Path | None, seconds: float, forwards: int, rounds: int) -> None:
    """Measure what clients see of broken answers, with and without resume, in OUT/resume.md; nine minutes.

    What the tests on real engines measured is read from OUT/resume_engines.json.

    Exit codes: 0 everything was played, 1 something could not be, 2 the command was used wrongly.
    """
    machine = Machine()
    try:
        outcomes = play_all(seconds, forwards, tell)
        described = machine.described()
        costs = measure_added(), measure_costs(rounds) if rounds else []
    except DemoFailure as error:
        raise click.ClickException(str(error)) from error
    measured = read_measured((out or FOLDER) / "resume_engines.json")
    write(out, {"resume.md": page_of(outcomes, costs, measured, described)})
