"""`nightside results placement`: plays the evaluation of the default placement, and writes its page and its plots."""

from __future__ import annotations

from pathlib import Path

import click

from loadgen.studies.experiments import all_cells
from loadgen.studies.placement.held_out import EXPECTED
from loadgen.studies.placement.page import page_of
from loadgen.studies.placement.plan import evaluation
from loadgen.studies.progress import played
from mesh.faults import ConfigError

_FOLDER = Path("docs/results")


@click.command()
@click.option(
    "--traces",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Read recorded traces from this folder.",
)
@click.option("--full", is_flag=True, help="Run five seeds throughout.")
@click.option("--look", is_flag=True, help="Run the held-out cells as well, once the expected results are written.")
@click.option("-o", "--out", type=click.Path(file_okay=False, path_type=Path),
              help=f"Write the page and its plots into this folder; default: {_FOLDER}.")  # fmt: skip
@click.option("--cache", "cache_folder", type=click.Path(file_okay=False, path_type=Path), default="build/results",
              show_default=True, help="Keep finished cells in this folder.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), help="Run this many processes, instead of one per core.")
@click.option("--only", multiple=True, metavar="EXPERIMENT",
              help="Run only cells that begin so, such as `sweep, agentic`; repeatable, and needs -o.")  # fmt: skip
def placement(
    *, traces: Path | None, full: bool, look: bool, out: Path | None, cache_folder: Path, jobs: int | None,
    only: tuple[str, ...],
) -> None:  # fmt: skip
    """Compare the default placement with other routers' rules on every workload and load, in OUT/placement.md.

    Cells that were played before, of the same code and the same files, are not played again: stop it and go on at will.

    Exit codes: 0 every cell was played, 1 some could not be (the page names them) or a file cannot be read, 2 the
    command was used wrongly.
    """
    if only and out is None:
        raise click.UsageError(f"--only makes a part of the page, and {_FOLDER} holds the whole: say with -o where to")
    if look and not EXPECTED:
        raise click.UsageError("--look: write down first what is expected of them, in held_out.py")
    plan = evaluation(traces, full=full, look=look)
    chosen = [each for each in plan.experiments if not only or each.name.startswith(only)]
    if unknown := [name for name in only if not any(each.name.startswith(name) for each in plan.experiments)]:
        names = "; ".join(each.name for each in plan.experiments)
        raise click.UsageError(f"no such experiment: {', '.join(unknown)}; there are: {names}")
    try:
        found = played((each.cell() for each in all_cells(chosen)), cache_folder, jobs)
    except (ConfigError, OSError) as error:
        raise click.ClickException(str(error)) from error
    out = out or _FOLDER
    out.mkdir(parents=True, exist_ok=True)
    for name, text in page_of(plan, found, {each.name for each in chosen} if only else None).items():
        (out / name).write_text(text, encoding="utf-8")
    click.echo(f"{out / 'placement.md'}")
    if found.failures:
        raise click.ClickException(f"{len(found.failures)} cells could not be played; the page names them")
