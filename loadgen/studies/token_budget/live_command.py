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
from loadgen.pages.markdown import NOTHING, table
from loadgen.studies.commands import Machine, options, rounds, tell, write
from loadgen.studies.token_budget import live
from loadgen.studies.token_budget.live import Seen, at, middle
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
    found: dict[str, list[Seen]] = {design: [] for design in live.DESIGNS}
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


def section(found: Mapping[str, Sequence[Seen]], machine: Mapping[str, object], busy: float) -> str:
    rows = [
        (
            design,
            _shown([at(each.chat_calm_s, 0.99) for each in rounds]),
            _shown([at(each.chat_burst_s, 0.5) for each in rounds]),
            _shown([at(each.chat_burst_s, 0.99) for each in rounds]),
            _shown([at(each.long_s, 0.5) for each in rounds]),
            _shown([at(each.long_s, 0.99) for each in rounds]),
            f"{sum(len(each.failures) for each in rounds)}",
        )
        for design, rounds in found.items()
    ]
    head = ("TTFT, s", "chat p99 before", "chat p50 from the burst on", "p99", "long p50", "p99", "failed")
    rounds = max(len(each) for each in found.values())
    return f"""{live.BURST} prompts of {live.BURST_TOKENS:,} tokens and answers of {live.BURST_ANSWER}, all at once,
beside {live.CHAT_PER_S:g} chats a second ({live.CHAT_TOKENS} tokens, answers of {live.CHAT_ANSWER}), one gateway and
{live.ENGINES} emulated engines with the paper's timing. *Pushed blindly*: each request goes to the next engine at once,
as plain balancers do it; else it waits in the gateway until an engine has nobody waiting. *One pool*: windows of
{live.LONG_WINDOW:,}, {live.LONG_SLOTS} slots each. *Split*: half of them with windows of {live.SHORT_WINDOW:,} and
{live.SHORT_SLOTS} slots, threshold {live.THRESHOLD:,}. Written by `make results NAME=token-budget-live`: medians of
{rounds} rounds, in brackets the lowest and the highest; on {machine["cpu"]}, {machine["cores"]} cores, of which
{busy:.0%} were busy, with whatever else ran there.

{table(head, rows)}"""


def _shown(values: Sequence[float | None]) -> str:
    found, present = middle(values), [value for value in values if value is not None]
    return NOTHING if found is None else f"{found:.2f} ({min(present):.2f}–{max(present):.2f})"
