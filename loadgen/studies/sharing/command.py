"""`nightside results sharing`: runs the measurement of each part, and writes the page. It measures nothing itself."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import click
from msgspec import to_builtins

from loadgen.bench.relay.machine import describe_machine
from loadgen.figures import Figures
from loadgen.studies.cells import Cell
from loadgen.studies.commands import FOLDER, options, read_json, write
from loadgen.studies.progress import played_whole
from loadgen.studies.sharing import class_goodput, day_price, fairness, limits, noisy_neighbour, scaling, worlds
from loadgen.studies.sharing.page import page_of
from loadgen.studies.sharing.worlds import StudySize


class PagePart(Protocol):
    """Interface of a part of the page, a module."""

    def measure(self, size: StudySize, /) -> Figures: ...

    def section(self, measured: Figures, /) -> str:
        """Markdown that begins with `## `."""
        ...


PARTS: Final[dict[str, PagePart]] = {
    "fairness": fairness,
    "noisy_neighbour": noisy_neighbour,
    "class_goodput": class_goodput,
    "limits": limits,
    "day_price": day_price,
    "scaling": scaling,
}


@click.command()
@options("out")
@click.option("--quick", is_flag=True, help="Run a short smoke test.")
@click.option(
    "--seeds", type=click.IntRange(1, 20), default=3, show_default=True, help="Set the number of runs of each case."
)
@click.option("--only", multiple=True, type=click.Choice(list(PARTS)), help="Run only this part; repeatable.")
@options("cache", "jobs")
def sharing(
    *, out: Path | None, quick: bool, seeds: int, only: tuple[str, ...], cache_folder: Path, jobs: int | None
) -> None:
    """Measure how the fleet is shared between tenants, in OUT/sharing.md and OUT/sharing.json.

    Parts that are not played are taken from OUT/sharing.json as they were measured before.

    Exit codes: 0 everything was played, 1 something could not be, 2 the command was used wrongly.
    """
    size = StudySize(seeds, quick)
    measured = (read_json((out or FOLDER) / "sharing.json") or {}) if only else {}
    cells = [
        Cell(name, name, partial(part.measure, size), [name, to_builtins(size)], (worlds.ROUND_TRIPS, limits.SCENARIO))
        for name, part in PARTS.items()
        if not only or name in only
    ]
    measured |= dict(played_whole(cells, cache_folder, jobs))
    sections = [part.section(measured[name]) for name, part in PARTS.items() if name in measured]
    command = f"nightside results sharing --seeds {seeds}" + (" --quick" if quick else "")
    page = page_of(sections, describe_machine(), command)
    write(out, {"sharing.md": page, "sharing.json": json.dumps(measured, indent=1) + "\n"})
