"""`nightside results failover`: kills gateways, and writes the page. It measures nothing itself."""

from __future__ import annotations

from pathlib import Path

import click

from loadgen.demo.processes import DemoFailure
from loadgen.studies.commands import options, rounds, tell, write


@click.command()
@options("out")
@rounds(3)
def failover(*, out: Path | None, rounds: int) -> None:
    """Measure live, with the OpenAI SDK, what clients see when gateways die, in OUT/failover.md; ten minutes.

    Exit codes: 0 everything was played, 1 something could not be, 2 the command was used wrongly.
    """
    try:
        from loadgen.studies.failover.playing import play_failover  # noqa: PLC0415 - the SDK is not always installed
    except ImportError as error:
        raise click.ClickException(f"{error}: the OpenAI SDK is the client that is measured (make setup)") from error
    try:
        page = play_failover(rounds, tell)
    except DemoFailure as error:
        raise click.ClickException(str(error)) from error
    write(out, {"failover.md": page})
