"""`nightside results live`: plays agents and trees live with the mesh and with other routers, and writes the page."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from loadgen.bench.relay.installed import RIVALS, version_of, why_missing
from loadgen.bench.relay.machine import describe_machine
from loadgen.figures import Figures
from loadgen.interrupts import EXIT_INTERRUPTED, ends_by_signal
from loadgen.settings import setting
from loadgen.studies.commands import options, refuse_over_the_whole, rounds, write
from loadgen.studies.placement.live.cases import LiveCase, cases
from loadgen.studies.placement.live.page import case_table, page_of
from loadgen.studies.placement.live.playing import Live
from loadgen.studies.placement.live.systems import LiveSystem, systems
from mesh.clock import Clock
from mesh.faults import ConfigError

_PAGE = "placement_live.md"
_EXIT_PROBLEM = 1


@click.command()
@options("traces")
@rounds(2)
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Set the seed of the first round; later rounds count up."
)
@click.option("--only", multiple=True, metavar="CASE", help="Run only this case; repeatable, and needs -o.")
@click.option("--rivals", type=click.Path(path_type=Path), default=RIVALS, show_default=True,
              help="Find the other routers in this environment.")  # fmt: skip
@click.option("--real", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Run two real engines as well, by this Python with llama.cpp.")  # fmt: skip
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a key of every scenario, as in a.0.b=3; repeatable.",
)
@options("out")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON; progress goes to stderr.")
@click.pass_context
def live(
    context: click.Context, *, traces: Path | None, rounds: int, seed: int, only: tuple[str, ...], rivals: Path,
    real: Path | None, settings: tuple[str, ...], out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Compare the mesh with other routers, live on this machine and on the same engines, in OUT/placement_live.md.

    The other routers come from an environment of their own, which `make relays` installs; without one, it is said on
    the page. A case and a system take a minute. Nothing else should run on the machine meanwhile; how busy it was is
    said as well.

    Exit codes: 0 everything was played, 1 something could not be (the page says what), 2 the command was used wrongly,
    130 it was stopped (Ctrl-C), and no page was written.
    """
    for option in [*(["--only"] if only else ()), *(["--set"] if settings else ())]:
        refuse_over_the_whole(option, out)
    chosen = _chosen(cases(traces, real.absolute() if real else None, dict(map(setting, settings))), only)
    missing = {
        each.name: why_missing(each.relay, rivals)
        for each in systems(rivals)
        if each.relay is not None and version_of(each.relay, rivals) is None
    }
    present = [each for each in systems(rivals) if each.name not in missing]
    folder = Path(tempfile.mkdtemp(prefix="nightside-live-"))
    console = Console(stderr=True)
    played = Live(chosen, present, rounds, seed, folder, console)
    if _was_stopped(played):
        console.print(f"Stopped after {len(played.runs)} runs. Logs and files: {folder}", soft_wrap=True)
        context.exit(EXIT_INTERRUPTED)
    document = _document(played, missing, rivals, _command_line(traces, rounds, seed, real))
    if not as_json:
        _show(document)
    write(out, {_PAGE: page_of(document)}, json.dumps(document, indent=2) if as_json else None)
    if played.faults:
        console.print(f"Logs and files: {folder}", soft_wrap=True)
        context.exit(_EXIT_PROBLEM)
    shutil.rmtree(folder)


def _was_stopped(played: Live) -> bool:
    """Play all cases; returns True if a signal stopped them. Raises ClickException for a scenario that cannot be played
    live."""
    try:
        return asyncio.run(ends_by_signal(played.play()))
    except ConfigError as error:
        raise click.ClickException(str(error)) from error


def _chosen(all_cases: Sequence[LiveCase], only: Sequence[str]) -> list[LiveCase]:
    if unknown := [name for name in only if name not in {each.name for each in all_cases}]:
        names = "; ".join(each.name for each in all_cases)
        raise click.UsageError(f"no such case: {', '.join(unknown)}; there are: {names}")
    return [each for each in all_cases if not only or each.name in only]


def _document(played: Live, missing: Mapping[str, str], rivals: Path, command: str) -> Figures:
    """Results as JSON: all data of the page."""
    return {
        "date": Clock().wall_time()[:10],
        "command": command,
        "machine": describe_machine(),
        "rounds": played.rounds,
        "seed": played.seed,
        "cases": [
            {
                "name": case.name,
                "what": case.what,
                "about": case.scenario(played.seed).about,
                "beside": case.beside,
            }
            for case in played.cases
        ],
        "systems": [{"name": each.name, "what": _told(each, rivals)} for each in played.systems],
        "not_measured": dict(missing),
        "faults": played.faults,
        "runs": played.runs,
    }


def _told(system: LiveSystem, rivals: Path) -> str:
    version = None if system.relay is None else version_of(system.relay, rivals)
    return f"{version}: {system.what}" if version else system.what


def _command_line(traces: Path | None, rounds: int, seed: int, real: Path | None) -> str:
    """Command line that repeats the run, with placeholders for paths."""
    words = ["nightside results live", f"--rounds {rounds}", f"--seed {seed}"]
    words += ["--traces DIR"] if traces is not None else []
    words += ["--real PYTHON"] if real is not None else []
    return " ".join(words)


def _show(document: Figures) -> None:
    console = Console()
    for case in document["cases"]:
        head, rows = case_table(document, case["name"])
        table = Table(title=f"{case['name']}: {case['what']}", title_justify="left")
        for number, name in enumerate(head):
            table.add_column(name, justify="right" if number else "left")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for name, why in document["not_measured"].items():
        console.print(f"not measured: {name}: {why}", markup=False, soft_wrap=True)
