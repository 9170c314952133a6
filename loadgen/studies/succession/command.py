"""`nightside results succession`: kills leading controllers, and writes the page. It measures nothing itself."""

from __future__ import annotations

from pathlib import Path

import click

from loadgen.bench.relay.machine import describe_machine
from loadgen.demo.processes import DemoFailure
from loadgen.machine import read_cpu_times
from loadgen.studies.succession.page import page_of
from loadgen.studies.succession.playing import play
from mesh.faults import ConfigError

_FOLDER = Path("docs/results")


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--out", type=click.Path(file_okay=False, path_type=Path), default=_FOLDER,
              show_default=True, help="Write the page into this folder.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1, 100), default=5, show_default=True, help="Kill this many leaders.")
def succession(*, files: tuple[Path, ...], out: Path, rounds: int) -> None:
    """Measure the time until another controller leads, in OUT/succession.md. FILES of controllers name the stores.

    Exit codes: 0 everything was played, 1 something could not be, 2 the command was used wrongly.
    """
    before = read_cpu_times(())
    try:
        found = [play(file, rounds, lambda line: click.echo(line, err=True)) for file in files]
    except (DemoFailure, ConfigError) as error:
        raise click.ClickException(str(error)) from error
    after = read_cpu_times(())
    busy = 0.0 if before is None or after is None else (after.busy - before.busy) / max(1, after.total - before.total)
    out.mkdir(parents=True, exist_ok=True)
    machine = {**describe_machine(), "busy": f"{busy:.0%} of its CPU was in use meanwhile, by all that ran there"}
    (out / "succession.md").write_text(page_of(found, machine), encoding="utf-8")
    click.echo(f"{out / 'succession.md'}")
