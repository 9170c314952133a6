"""Plays cells and shows the progress: a bar on a terminal, and lines in a log."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from loadgen.figures import Figures
from loadgen.studies.cells import Cell, Results, play_all

_SPEED_OVER_S = 600.0
"""Window of the speed estimate: cells are so unequal that only many of them give a speed."""
_LINES = 40
"""Number of lines in a log, over a whole run."""


def played(cells: Iterable[Cell], cache_folder: Path, jobs: int | None) -> Results:
    """Play the cells in `jobs` processes, or one per core, with progress shown. Raises OSError."""
    with progress_shown() as told:
        return play_all(cells, cache_folder, processes=jobs or os.cpu_count() or 1, on_progress=told)


def played_whole(cells: Iterable[Cell], cache_folder: Path, jobs: int | None) -> Mapping[Any, Figures]:
    """Figures of the cells, for a page that needs them all. Raises OSError, and ClickException where one failed."""
    results = played(cells, cache_folder, jobs)
    if results.failures:
        told = (f"{title}: {reason}" for title, reason in results.failures.items())
        raise click.ClickException("\n".join([f"{len(results.failures)} cells could not be played:", *told]))
    return results.figures


@contextmanager
def progress_shown() -> Iterator[Callable[[int, int], None]]:
    """Show progress; yields a callback that takes the numbers of finished and of all cells."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("left:"), TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), speed_estimate_period=_SPEED_OVER_S) as progress:
        yield _Told(progress)


class _Told:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None
        self._line_at = 0

    def __call__(self, done: int, total: int) -> None:
        if self._task is None:
            # Cached cells count as done from the start, so that they do not distort the speed.
            self._task = self._progress.add_task("cells", total=total, completed=done)
        self._progress.update(self._task, completed=done)
        if not self._progress.console.is_terminal and done >= self._line_at:
            self._line_at = done + max(1, total // _LINES)
            left_s = self._progress.tasks[self._task].time_remaining
            left = "" if left_s is None else f", about {left_s / 60:.1f} min left"
            self._progress.console.print(f"{done} of {total} cells{left}")
