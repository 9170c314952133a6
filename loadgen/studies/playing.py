"""Plays the cells that are not cached, over several processes, and caches each as soon as it is done, unless a file
that it read has changed since its key was taken.

The results do not depend on the number of processes, nor on earlier interruptions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from loadgen.figures import Figures
from loadgen.simulator.sweep import all_done
from loadgen.studies.cache import CellCache
from loadgen.studies.experiments import Cell, Experiment
from loadgen.studies.inputs import changed, files_of, stamp_of
from loadgen.studies.play import play


@dataclass(frozen=True, slots=True)
class Failure:
    """A cell that gave no figures, and the error."""

    reason: str


def attempted(work: Callable[[Cell], Figures], cell: Cell) -> Figures | Failure:
    """Play one cell and return its failure as a value, so that it does not end all others."""
    try:
        return work(cell)
    except Exception as error:  # noqa: BLE001 - any error is shown on the page
        return Failure(f"{type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class Results:
    """Figures of all cells, by their places in their experiments."""

    figures: Mapping[tuple[str, str, str, int], Figures]
    failures: Mapping[str, str] = field(default_factory=dict)
    """Reasons why cells have no figures, by the cells' titles."""

    def of(self, experiment: Experiment, point: str, run: str) -> list[Figures]:
        """Figures of each seed, in order; empty for a cell that failed."""
        return [self.figures.get((experiment.name, point, run, seed), {}) for seed in experiment.seeds]


def play_all(
    cells: Sequence[Cell],
    cache: CellCache,
    *,
    processes: int,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
    work: Callable[[Cell], Figures] = play,
) -> Results:
    """Play the cells. `on_progress` is given the numbers of finished and of all cells; equal cells of two experiments
    are played once, and failed ones are tried again by the next run."""
    places: dict[str, list[Cell]] = {}
    stamps = {file: stamp_of(file) for cell in cells for file in files_of(cell)}
    for cell in cells:
        places.setdefault(cache.key_of(cell), []).append(cell)
    keys = {id(alike[0]): key for key, alike in places.items()}
    known = {key: found for key in places if (found := cache.find(key)) is not None}
    missing = [alike[0] for key, alike in places.items() if key not in known]
    failed: dict[str, str] = {}
    on_progress(len(known), len(places))
    for cell, figures in all_done(partial(attempted, work), missing, processes=processes):
        key = keys[id(cell)]
        others = changed({file: stamps[file] for file in files_of(cell)})
        if isinstance(figures, Failure):
            failed[key] = figures.reason
        elif others:
            failed[key] = f"what it reads has changed since this was started, so start it again: {', '.join(others)}"
        else:
            cache.keep(key, figures)
            known[key] = figures
        on_progress(len(known) + len(failed), len(places))
    return Results(
        {
            (cell.experiment, cell.point.name, cell.run_name, cell.seed): known[key]
            for key, alike in places.items()
            for cell in alike
            if key in known
        },
        {cell.title: reason for key, reason in failed.items() for cell in places[key]},
    )
