"""`nightside results token-budget-live`: plays the burst on this machine, and writes a section of the page."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from loadgen.bench.relay.machine import describe_machine
from loadgen.demo.processes import DemoFailure
from loadgen.interrupts import leaves
from loadgen.pages.markdown import NOTHING
from loadgen.studies.commands import Machine, options, rounds, tell, write
from loadgen.studies.rendering import render
from loadgen.studies.token_budget import live
from loadgen.studies.token_budget.live import FirstTokens, at, middle
from mesh.faults import ConfigError

NAME = "token-budget-live.md"


@click.command("token-budget-live")
@rounds(3)
@options("out")
def token_budget_live(*, rounds: int, out: Path | None) -> None:
    """Measure a burst of prompts of 16,000 tokens beside short chat, live, in OUT/token-budget-live.md, where
    `results token-budget` finds it; four minutes.

    Exit codes: 0 everything was played, 1 something could not be, 2 the command was used wrongly.
    """
    folder, machine = Path(tempfile.mkdtemp(prefix="nightside-live-")), Machine()
    found: dict[str, list[FirstTokens]] = {design: [] for design in live.DESIGNS}
    complaints: list[str] = []
    try:
        for number in range(rounds):
            for design in live.DESIGNS:
                place = folder / f"{number}-{live.DESIGNS.index(design)}"
                found[design].append(asyncio.run(live.play(design, number + 1, place)))
                tell(f"round {number + 1} of {rounds}: {design}")
    except* (DemoFailure, ConfigError, OSError) as failures:
        complaints = [str(each) or type(each).__name__ for each in leaves(failures)]
    if complaints:
        raise click.ClickException("\n".join([*complaints, f"Logs and region files: {folder}"]))
    shutil.rmtree(folder)
    write(out, {NAME: section(found, describe_machine(), machine.busy_share())})


def section(found: Mapping[str, Sequence[FirstTokens]], machine: Mapping[str, object], busy: float) -> str:
    return render("token_budget/live.j2", live=live, found=found, machine=machine, busy=busy, shown=_shown)


def _shown(rounds: Sequence[FirstTokens], times: str, share: float) -> str:
    """Median over the rounds of a quantile of the named times, with its range."""
    values = [at(getattr(each, times), share) for each in rounds]
    found, present = middle(values), [value for value in values if value is not None]
    return NOTHING if found is None else f"{found:.2f} ({min(present):.2f}–{max(present):.2f})"
