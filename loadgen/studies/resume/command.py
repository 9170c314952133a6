"""`nightside results resume`: kills engines and regions under load, and writes the page. It measures nothing itself."""

from __future__ import annotations

from pathlib import Path

import click

from loadgen.bench.relay.machine import describe_machine
from loadgen.demo.processes import DemoFailure
from loadgen.machine import read_cpu_times
from loadgen.studies.resume.costs import measure_added, measure_costs
from loadgen.studies.resume.page import page_of
from loadgen.studies.resume.playing import play_all
from loadgen.studies.resume.real_engines import read_measured

_FOLDER = Path("docs/results")


@click.command()
@click.option("-o", "--out", type=click.Path(file_okay=False, path_type=Path), default=_FOLDER,
              show_default=True, help="Write the page into this folder.")  # fmt: skip
@click.option(
    "--seconds",
    type=click.FloatRange(1, 600),
    default=30.0,
    show_default=True,
    help="Kill engines for this many seconds.",
)
@click.option(
    "--forwards",
    type=click.IntRange(2, 500),
    default=100,
    show_default=True,
    help="Set the forwards that a region holds.",
)
@click.option("--rounds", type=click.IntRange(0, 100), default=3, show_default=True,
              help="Set the rounds in which a chunk's cost is measured.")  # fmt: skip
def resume(*, out: Path, seconds: float, forwards: int, rounds: int) -> None:
    """Measure what clients see of broken answers, with and without resume, in OUT/resume.md.

    What the tests on real engines measured is read from OUT/resume_engines.json.

    Exit codes: 0 everything was played, 1 something could not be, 2 the command was used wrongly.
    """
    before = read_cpu_times(())
    try:
        outcomes = play_all(seconds, forwards, lambda line: click.echo(line, err=True))
        after = read_cpu_times(())
        costs = measure_added(), measure_costs(rounds) if rounds else []
    except DemoFailure as error:
        raise click.ClickException(str(error)) from error
    busy = 0.0 if before is None or after is None else (after.busy - before.busy) / max(1, after.total - before.total)
    out.mkdir(parents=True, exist_ok=True)
    machine = {**describe_machine(), "busy": f"{busy:.0%} of its CPU was in use meanwhile, by all that ran there"}
    measured = read_measured(out / "resume_engines.json")
    (out / "resume.md").write_text(page_of(outcomes, costs, measured, machine), encoding="utf-8")
    click.echo(f"{out / 'resume.md'}")
