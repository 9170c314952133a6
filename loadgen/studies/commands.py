"""Parts that the studies' commands share: their options, where pages are written, and the machine's description."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from loadgen.bench.relay.machine import describe_machine
from loadgen.machine import read_cpu_times
from loadgen.studies.cells import Results
from loadgen.studies.experiments import Experiment, all_cells
from loadgen.studies.progress import played
from mesh.faults import ConfigError

FOLDER = Path("docs/results")
"""Folder of the pages that are committed."""
_Command = TypeVar("_Command", bound=Callable[..., Any])
_FOLDER_TYPE = click.Path(file_okay=False, path_type=Path)
_OPTIONS = {
    "traces": click.option("--traces", type=click.Path(exists=True, file_okay=False, path_type=Path),
                           help="Read recorded traces from this folder."),
    "full": click.option("--full", is_flag=True, help="Run more seeds throughout; takes hours."),
    "quick": click.option("--quick", is_flag=True, help="Run a few requests per cell, as a smoke test; needs -o."),
    "look": click.option("--look", is_flag=True,
                         help="Run the held-out cells as well, once the expected results are written."),
    "out": click.option("-o", "--out", type=_FOLDER_TYPE,
                        help=f"Write the page and its plots into this folder; default: {FOLDER}."),
    "cache": click.option("--cache", "cache_folder", type=_FOLDER_TYPE, default="build/results", show_default=True,
                          help="Keep finished cells in this folder."),
    "jobs": click.option("--jobs", type=click.IntRange(1), help="Run this many processes, instead of one per core."),
    "only": click.option("--only", multiple=True, metavar="EXPERIMENT",
                         help="Run only experiments that begin so, such as `fig9`; repeatable, and needs -o."),
    "keep": click.option("--keep", type=_FOLDER_TYPE,
                         help="Keep the files and logs of all processes in this empty or new folder."),
    "json": click.option("--json", "as_json", is_flag=True, help="Print every cell's figures as JSON as well."),
}  # fmt: skip


def options(*names: str) -> Callable[[_Command], _Command]:
    """Add the options that several studies have, by their names, in this order."""

    def decorate(command: _Command) -> _Command:
        for name in reversed(names):
            command = _OPTIONS[name](command)
        return command

    return decorate


def rounds(default: int, most: int = 20) -> Callable[[_Command], _Command]:
    """Option of a live study."""
    return click.option("--rounds", type=click.IntRange(1, most), default=default, show_default=True,
                        help="Set the number of runs of each case.")  # fmt: skip


def refuse_over_the_whole(option: str, out: Path | None) -> None:
    """Refuse an option that makes another page than the committed one, without a place for that. Raises UsageError."""
    if out is None:
        raise click.UsageError(f"{option} makes another page than that in {FOLDER}: say with -o where to")


def refuse_full(keep: Path | None) -> None:
    """Refuse a folder of `--keep` that holds files. Raises UsageError."""
    if keep is not None and keep.is_dir() and any(keep.iterdir()):
        raise click.UsageError(f"--keep: '{keep}' is not empty, and files of several runs would be taken for one's")


def play_chosen(
    experiments: Sequence[Experiment], only: tuple[str, ...], out: Path | None, cache_folder: Path, jobs: int | None
) -> tuple[list[str], Results]:
    """Names of the experiments that begin as `only` says, or of all, and their results. Raises UsageError, and
    ClickException for a file that cannot be read."""
    if only:
        refuse_over_the_whole("--only", out)
    if unknown := [name for name in only if not any(each.name.startswith(name) for each in experiments)]:
        names = "; ".join(each.name for each in experiments)
        raise click.UsageError(f"no such experiment: {', '.join(unknown)}; there are: {names}")
    chosen = [each for each in experiments if not only or each.name.startswith(only)]
    try:
        results = played((each.cell() for each in all_cells(chosen)), cache_folder, jobs)
    except (ConfigError, OSError) as error:
        raise click.ClickException(str(error)) from error
    return [each.name for each in chosen], results


def write(out: Path | None, pages: Mapping[str, str], shown: str | None = None, failures: Collection[str] = ()) -> None:
    """Write the pages, and print the first one's path, or `shown` instead. Raises ClickException if cells failed."""
    folder = out or FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")
    click.echo(f"{folder / next(iter(pages))}" if shown is None else shown)
    if failures:
        raise click.ClickException(f"{len(failures)} cells could not be played; the page names them")


def read_json(file: Path) -> Any:
    """Content of a file that another command has left; None without one. Raises ClickException if it is not JSON."""
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    except ValueError as error:
        raise click.ClickException(f"{file}: {error}") from error


def tell(line: str) -> None:
    """Show progress."""
    click.echo(line, err=True)


def _own_cpu_s() -> float:
    """CPU time of this process and of those that it has started and that have ended."""
    return sum(os.times()[:4])


class Machine:
    """Machine of a live study, and how much of its CPU was in use since then by all that ran."""

    def __init__(self) -> None:
        self._before = read_cpu_times(())
        self._own_s = _own_cpu_s()

    def busy_share(self) -> float:
        """Share from the begin until now; 0 on a system that does not tell."""
        before, after = self._before, read_cpu_times(())
        if before is None or after is None:
            return 0.0
        return (after.busy - before.busy) / max(1, after.total - before.total)

    def others_share(self) -> float:
        """Share that processes took which this one neither is nor has started and seen end; 0 on a system that does not
        tell."""
        before, after = self._before, read_cpu_times(())
        if before is None or after is None:
            return 0.0
        own = (_own_cpu_s() - self._own_s) * os.sysconf("SC_CLK_TCK")
        return max(0.0, after.busy - before.busy - own) / max(1, after.total - before.total)

    def described(self) -> dict[str, object]:
        busy = f"{self.busy_share():.0%} of its CPU was in use meanwhile, by all that ran there"
        return {**describe_machine(), "busy": busy}
