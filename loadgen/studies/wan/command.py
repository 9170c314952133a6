"""`nightside results wan`: plays faults between hosts, and writes the page. It measures nothing itself."""

from __future__ import annotations

from pathlib import Path

import click

from loadgen.hosts.namespaces import HostsUnavailable, check_machine
from loadgen.hosts.services import check_programs
from loadgen.interrupts import EXIT_INTERRUPTED
from loadgen.studies.commands import Machine, options, refuse_full, refuse_over_the_whole, rounds, tell, write
from loadgen.studies.wan.faults import FAULTS
from loadgen.studies.wan.page import page_of


@click.command()
@click.pass_context
@options("out")
@rounds(1)
@click.option(
    "--only", multiple=True, metavar="FAULT", help="Play only faults that begin so; repeatable, and needs -o."
)
@options("keep")
def wan(context: click.Context, *, out: Path | None, rounds: int, only: tuple[str, ...], keep: Path | None) -> None:
    """Break the network between three hosts on this machine, in OUT/wan.md; needs Linux, root and half an hour.

    Exit codes: 0 everything was played, 1 something could not be: the page names it, 2 the command was used wrongly,
    130 a signal ended it, and no page is written.
    """
    chosen = [each for each in FAULTS if not only or each.name.startswith(only)]
    if only:
        refuse_over_the_whole("--only", out)
    if not chosen:
        raise click.UsageError(f"no such fault; there are: {', '.join(each.name for each in FAULTS)}")
    refuse_full(keep)
    try:
        check_machine()
        check_programs()
        from loadgen.studies.wan.playing import play_faults  # noqa: PLC0415 - the SDK is not always installed

        machine = Machine()
        played = play_faults(chosen, rounds, tell, keep)
    except ImportError as error:
        raise click.ClickException(f"{error}: the OpenAI SDK is the client that is measured (make setup)") from error
    except HostsUnavailable as error:
        raise click.ClickException(str(error)) from error
    if played.is_interrupted:
        tell(f"stopped after {len(played.outcomes)} faults; no page is written")
        context.exit(EXIT_INTERRUPTED)
    if not played.outcomes:
        raise click.ClickException("\n".join(["no fault could be played:", *played.unplayed]))
    write(out, {"wan.md": page_of(chosen, played, machine.described())})
    if played.unplayed:
        raise click.ClickException(f"{len(played.unplayed)} faults could not be played; the page names them")
