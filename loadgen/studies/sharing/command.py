"""`nightside results sharing`: runs the measurement of each part, and writes the page. It measures nothing itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from loadgen.bench.relay.machine import describe_machine
from loadgen.studies.sharing import class_goodput, day_price, fairness, limits, noisy_neighbour, scaling
from loadgen.studies.sharing.page import page_of

_FOLDER = Path("docs/results")


@dataclass(frozen=True, slots=True)
class Options:
    """Options that every part is given."""

    quick: bool = False
    """Only check that the part can be played; its figures mean nothing."""
    seeds: int = 1


@dataclass(frozen=True, slots=True)
class Part:
    """Part of the page. `measure` returns JSON-able results; `section` formats them as Markdown that begins with `##
    `."""

    measure: Callable[[object], dict[str, object]]
    section: Callable[[dict[str, Any]], str]


PARTS: Final[dict[str, Part]] = {
    "fairness": Part(fairness.measure, fairness.section),
    "noisy_neighbour": Part(noisy_neighbour.measure, noisy_neighbour.section),
    "class_goodput": Part(class_goodput.measure, class_goodput.section),
    "limits": Part(limits.measure, limits.section),
    "day_price": Part(day_price.measure, day_price.section),
    "scaling": Part(scaling.measure, scaling.section),
}


@click.command()
@click.option("-o", "--out", type=click.Path(file_okay=False, path_type=Path), default=_FOLDER,
              show_default=True, help="Write the page into this folder.")  # fmt: skip
@click.option("--quick", is_flag=True, help="Run a short smoke test.")
@click.option(
    "--seeds", type=click.IntRange(1, 20), default=3, show_default=True, help="Set the number of runs of each case."
)
@click.option("--only", multiple=True, type=click.Choice(list(PARTS)), help="Run only this part; repeatable.")
def sharing(*, out: Path, quick: bool, seeds: int, only: tuple[str, ...]) -> None:
    """Measure how the fleet is shared between tenants, in OUT/sharing.md and OUT/sharing.json.

    Parts that are not played are taken from OUT/sharing.json as they were measured before.

    Exit codes: 0 everything was played, 1 something could not be, 2 the command was used wrongly.
    """
    options = Options(quick, seeds)
    kept = out / "sharing.json"
    try:
        measured = json.loads(kept.read_text(encoding="utf-8")) if only and kept.exists() else {}
    except ValueError as error:
        raise click.ClickException(f"{kept}: {error}") from error
    for name, part in PARTS.items():
        if not only or name in only:
            click.echo(name, err=True)
            measured[name] = part.measure(options)
    out.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    sections = [part.section(measured[name]) for name, part in PARTS.items() if name in measured]
    command = f"nightside results sharing --seeds {seeds}" + (" --quick" if quick else "")
    (out / "sharing.md").write_text(page_of(sections, describe_machine(), command), encoding="utf-8")
    click.echo(f"{out / 'sharing.md'}")
