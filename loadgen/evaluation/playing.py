"""Plays the cells that are not remembered, over several processes, and remembers each as soon as it is done.

What it gives does not depend on how many, nor on where it was stopped before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from loadgen.evaluation.cache import CellCache
from loadgen.evaluation.experiments import Cell, Experiment
from loadgen.figures import Figures
from loadgen.simulator.results import figures_of
from loadgen.simulator.sweep import all_done
from loadgen.simulator.world import World

_LEFT_OUT = ("placements", "series")
"""Of a run's figures: large, and no page shows them."""


def play(cell: Cell) -> Figures:
    """Raises ConfigError."""
    scenario = cell.scenario()
    figures = figures_of(scenario, World(scenario, scenario.runs[0]).play())
    return {key: value for key, value in figures.items() if key not in _LEFT_OUT}


@dataclass(frozen=True, slots=True)
class Results:
    """What came of all cells, by where they stand in their experiments."""

    figures: Mapping[tuple[str, str, str, int], Figures]

    def of(self, experiment: Experiment, point: str, run: str) -> list[Figures]:
        """One for each seed, in their order."""
        return [self.figures[experiment.name, point, run, seed] for seed in experiment.seeds]


def play_all(
    cells: Sequence[Cell],
    cache: CellCache,
    *,
    processes: int,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
    work: Callable[[Cell], Figures] = play,
) -> Results:
    """`on_progress` is told how many of how many cells are done; equal cells of two experiments are played once."""
    places: dict[str, list[Cell]] = {}
    for cell in cells:
        places.setdefault(cache.key_of(cell), []).append(cell)
    keys = {id(alike[0]): key for key, alike in places.items()}
    known = {key: found for key in places if (found := cache.find(key)) is not None}
    missing = [alike[0] for key, alike in places.items() if key not in known]
    on_progress(len(known), len(places))
    for cell, figures in all_done(work, missing, processes=processes):
        key = keys[id(cell)]
        cache.keep(key, figures)
        known[key] = figures
        on_progress(len(known), len(places))
    return Results(
        {
            (cell.experiment, cell.point.name, cell.run_name, cell.seed): known[key]
            for key, alike in places.items()
            for cell in alike
        }
    )
