"""`nightside results`: plays an evaluation, in virtual time or live, and writes its page and its plots.

It only finds files, plays and writes; every figure and every sentence is made elsewhere.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from loadgen.demo.processes import DemoFailure
from loadgen.figures import Figures
from loadgen.studies.balanceroute.command import balanceroute
from loadgen.studies.eldr.command import eldr
from loadgen.studies.experiments import all_cells
from loadgen.studies.placement.command import placement
from loadgen.studies.placement.live.command import live
from loadgen.studies.placement.trial import trial
from loadgen.studies.predictors.command import predictors
from loadgen.studies.progress import played
from loadgen.studies.prompts.command import token_budget_classifier
from loadgen.studies.resume.command import resume
from loadgen.studies.sharing.command import sharing
from loadgen.studies.skywalker.page import page_of
from loadgen.studies.skywalker.plan import evaluation, find_traces
from loadgen.studies.skywalker.slots import SLOTS
from loadgen.studies.succession.command import succession
from loadgen.studies.token_budget.command import token_budget
from loadgen.studies.token_budget.live_command import token_budget_live
from mesh.faults import ConfigError

_FOLDER = Path("docs/results")
_CACHE = Path("build/results")


@click.group()
def results() -> None:
    """Repeat published measurements and write pages of results.

    Exit codes: 0 everything was played, 1 something could not be, 2 the command was used wrongly.
    """


@results.command()
@click.option(
    "--traces",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Read recorded traces from this folder.",
)
@click.option("--full", is_flag=True, help="Run ten seeds throughout; takes hours.")
@click.option("-o", "--out", type=click.Path(file_okay=False, path_type=Path),
              help=f"Write the page and its plots into this folder; default: {_FOLDER}.")  # fmt: skip
@click.option("--cache", "cache_folder", type=click.Path(file_okay=False, path_type=Path), default=_CACHE,
              show_default=True, help="Keep finished cells in this folder.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), help="Run this many processes, instead of one per core.")
@click.option(
    "--only",
    multiple=True,
    metavar="EXPERIMENT",
    help="Run only this part; repeatable, and needs -o.",
)
def skywalker(
    *, traces: Path | None, full: bool, out: Path | None, cache_folder: Path, jobs: int | None, only: tuple[str, ...]
) -> None:
    """Repeat SkyWalker's evaluation, in OUT/skywalker.md.

    Cells that were played before, of the same code and the same files, are not played again: stop it and go on at will.

    Exit codes: 0 every cell was played, 1 some could not be (the page names them) or a file cannot be read, 2 the
    command was used wrongly.
    """
    if only and out is None:
        raise click.UsageError(f"--only makes a part of the page, and {_FOLDER} holds the whole: say with -o where to")
    out = out or _FOLDER
    plan = evaluation(find_traces(traces), full=full)
    chosen = [each for each in plan.experiments if not only or each.name.startswith(only)]
    if unknown := [name for name in only if not any(each.name.startswith(name) for each in plan.experiments)]:
        names = ", ".join(each.name for each in plan.experiments)
        raise click.UsageError(f"no such experiment: {', '.join(unknown)}; there are: {names}")
    try:
        found = played((each.cell() for each in all_cells(chosen)), cache_folder, jobs)
    except (ConfigError, OSError) as error:
        raise click.ClickException(str(error)) from error
    out.mkdir(parents=True, exist_ok=True)
    for name, text in page_of(plan, found, _others(out), [each.name for each in chosen]).items():
        (out / name).write_text(text, encoding="utf-8")
    click.echo(f"{out / 'skywalker.md'}")
    if found.failures:
        raise click.ClickException(f"{len(found.failures)} cells could not be played; the page names them")


@results.command()
@click.option("-o", "--out", type=click.Path(file_okay=False, path_type=Path), default=_FOLDER,
              show_default=True, help="Write the page into this folder.")  # fmt: skip
@click.option(
    "--rounds", type=click.IntRange(1, 20), default=3, show_default=True, help="Set the number of runs of each case."
)
def failover(*, out: Path, rounds: int) -> None:
    """Measure live, with the OpenAI SDK, what clients see when gateways die, in OUT/failover.md.

    Exit codes: 0 everything was played, 1 something could not be, 2 the command was used wrongly.
    """
    try:
        from loadgen.studies.failover.playing import play_failover  # noqa: PLC0415 - the SDK is not always installed
    except ImportError as error:
        raise click.ClickException(f"{error}: the OpenAI SDK is the client that is measured (make setup)") from error
    try:
        page = play_failover(rounds, lambda line: click.echo(line, err=True))
    except DemoFailure as error:
        raise click.ClickException(str(error)) from error
    out.mkdir(parents=True, exist_ok=True)
    (out / "failover.md").write_text(page, encoding="utf-8")
    click.echo(f"{out / 'failover.md'}")


results.add_command(placement)
results.add_command(succession)
results.add_command(resume)
results.add_command(sharing)
results.add_command(live)
results.add_command(trial)
results.add_command(predictors)
results.add_command(balanceroute)
results.add_command(token_budget)
results.add_command(token_budget_live)
results.add_command(token_budget_classifier)
results.add_command(eldr)


def _others(folder: Path) -> dict[str, Figures]:
    """Measurements of other commands, by slot; absent ones are left out. Raises ClickException for a file that is not
    JSON."""
    found: dict[str, Figures] = {}
    for slot in SLOTS:
        file = folder / f"{slot}.json"
        if not file.exists():
            continue
        try:
            found[slot] = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise click.ClickException(f"{file}: {error}") from error
    return found
