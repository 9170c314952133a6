"""Execution of a scenario's runs, and of grids of scenarios, over several processes or the machines of a cluster.

The results do not depend on their number.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import islice, product
from typing import Any, Protocol, TypeVar

from loadgen.figures import Figures
from loadgen.simulator.results import figures_of
from loadgen.simulator.scenario import Scenario
from loadgen.simulator.world import World

_Job = TypeVar("_Job")
_Done = TypeVar("_Done")
_OBJECTS_APART = 1_000_000
"""Objects made between two garbage collections of a worker process."""


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One run of one variant of a scenario: a job for one process, on any machine."""

    number: int
    """Position in the grid."""
    scenario: Scenario
    run_name: str
    check: bool


def play(cell: SweepCell) -> Figures:
    """Play a cell. Raises Broken if the cell is checked and an invariant does not hold."""
    run = next(run for run in cell.scenario.runs if run.name == cell.run_name)
    world = World(cell.scenario, run, every_invariant=cell.check)
    story = world.play()
    if cell.check:
        world.check_the_end()
    return figures_of(cell.scenario, story)


def grid(sweeps: Mapping[str, Sequence[object]]) -> list[dict[str, object]]:
    """Every combination of values, the last key changing fastest; one empty combination without keys."""
    return [dict(zip(sweeps, values, strict=True)) for values in product(*sweeps.values())]


class SeedSpread(Protocol):
    """Executor of jobs, which yields each job with its result, in the order of completion."""

    def __call__(self, work: Callable[[_Job], _Done], jobs: Iterable[_Job]) -> Iterator[tuple[_Job, _Done]]: ...


def all_done(work: Callable[[_Job], _Done], jobs: Iterable[_Job], *, processes: int) -> Iterator[tuple[_Job, _Done]]:
    """Run the jobs in `processes` processes, and yield each with its result, in the order of completion."""
    waiting = list(jobs)
    if processes == 1 or len(waiting) == 1:
        for job in waiting:
            yield job, work(job)
        return
    with ProcessPoolExecutor(max_workers=processes, initializer=_collect_seldom) as pool:
        futures = {pool.submit(work, job): job for job in waiting}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _collect_seldom() -> None:
    """Make garbage collections of a worker process rare. What a played world leaves behind is little, and looking
    through it takes a tenth of the time of a short run."""
    gc.set_threshold(_OBJECTS_APART)


class Cluster(Protocol):
    """Interface of a cluster of machines. A ticket identifies a submitted job."""

    def submit(self, work: Callable[[Any], Any], job: object) -> object: ...

    def first_done(self, tickets: Sequence[object]) -> object:
        """Wait until one of the jobs is done, and return its ticket."""
        ...

    def result(self, ticket: object) -> Any:
        """Return the result of a job, or raise what the job raised."""
        ...

    def cancel(self, ticket: object) -> None: ...


def all_done_on(
    cluster: Cluster, in_flight_max: int, work: Callable[[_Job], _Done], jobs: Iterable[_Job]
) -> Iterator[tuple[_Job, _Done]]:
    """Run the jobs on a cluster, at most `in_flight_max` at once, like `all_done`. The first failure cancels all
    others."""
    waiting = iter(jobs)
    out = {cluster.submit(work, job): job for job in islice(waiting, in_flight_max)}
    try:
        while out:
            ticket = cluster.first_done(list(out))
            job = out.pop(ticket)
            yield job, cluster.result(ticket)
            out |= {cluster.submit(work, job): job for job in islice(waiting, 1)}
    finally:
        for ticket in out:
            cluster.cancel(ticket)
