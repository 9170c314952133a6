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
from loadgen.machine import read_cpu_times
from loadgen.pages.markdown import NOTHING, table
from loadgen.studies.token_budget import live
from loadgen.studies.token_budget.live import Seen, at, middle
from mesh.faults import ConfigError

NAME = "token-budget-live.md"
_FOLDER = Path("docs/results")


@click.command("token-budget-live")
@click.option("--rounds", type=click.IntRange(1, 20), default=3, show_default=True, help="Set the number of rounds.")
@click.option("-o", "--out", type=click.Path(file_okay=False, path_type=Path), default=_FOLDER, show_default=True,
              help="Write the section into this folder, where `results token-budget` finds it.")  # fmt: skip
def token_budget_live(*, rounds: int, out: Path) -> None:
    """Measure a burst of prompts of 16,000 tokens beside short chat, live, in OUT/token-budget-live.md.

    Exit codes: 0 everything was played, 1 something could not be, 2 the command was used wrongly.
    """
    folder = Path(tempfile.mkdtemp(prefix="nightside-live-"))
    before = read_cpu_times(())
    found: dict[str, list[Seen]] = {design: [] for design in live.DESIGNS}
    complaints: list[str] = []
    try:
        for number in range(rounds):
            for design in live.DESIGNS:
                place = folder / f"{number}-{live.DESIGNS.index(design)}"
                found[design].append(asyncio.run(live.play(design, number + 1, place)))
                click.echo(f"round {number + 1} of {rounds}: {design}", err=True)
    except* (DemoFailure, ConfigError, OSError) as failures:
        complaints = [str(each) or type(each).__name__ for each in leaves(failures)]
    if complaints:
        raise click.ClickException("\n".join([*complaints, f"Logs and region files: {folder}"]))
    shutil.rmtree(folder)
    after = read_cpu_times(())
    busy = 0.0 if before is None or after is None else (after.busy - before.busy) / max(1, after.total - before.total)
    out.mkdir(parents=True, exist_ok=True)
    (out / NAME).write_text(section(found, describe_machine(), busy), encoding="utf-8")
    click.echo(f"{out / NAME}")


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
{live.SHORT_SLOTS} slots, threshold {live.THRESHOLD:,}. Written by `make results-token-budget-live`: medians of {rounds}
rounds, in brackets the lowest and the highest; on {machine["cpu"]}, {machine["cores"]} cores, of which {busy:.0%} were
busy, with whatever else ran there.

{table(head, rows)}"""


def _shown(values: Sequence[float | None]) -> str:
    found, present = middle(values), [value for value in values if value is not None]
    return NOTHING if found is None else f"{found:.2f} ({min(present):.2f}–{max(present):.2f})"
