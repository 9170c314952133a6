"""Plays the runs of a scenario, and of grids of scenarios, over several processes.

What it gives does not depend on how many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TypeVar

from loadgen.simulator.results import Figures, figures_of
from loadgen.simulator.scenario import load_scenario
from loadgen.simulator.world import World

_Job = TypeVar("_Job")
_Done = TypeVar("_Done")


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of one variant of a scenario: a job for one process."""

    path: Path
    changes: Mapping[str, object]
    run_name: str
    check: bool


def play(cell: Cell) -> Figures:
    """Raises Broken where the cell is checked and something does not hold."""
    scenario = load_scenario(cell.path, cell.changes)
    run = next(run for run in scenario.runs if run.name == cell.run_name)
    world = World(scenario, run, every_invariant=cell.check)
    story = world.play()
    if cell.check:
        world.check_the_end()
    return figures_of(scenario, story)


def grid(sweeps: Mapping[str, Sequence[object]]) -> list[dict[str, object]]:
    """Every combination, the last key changing fastest; one empty combination without keys."""
    return [dict(zip(sweeps, values, strict=True)) for values in product(*sweeps.values())]


def all_done(work: Callable[[_Job], _Done], jobs: Iterable[_Job], *, processes: int) -> Iterator[tuple[_Job, _Done]]:
    """Each job with what came of it, in the order in which they finish."""
    waiting = list(jobs)
    if processes == 1 or len(waiting) == 1:
        for job in waiting:
            yield job, work(job)
        return
    with ProcessPoolExecutor(max_workers=processes) as pool:
        futures = {pool.submit(work, job): job for job in waiting}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
