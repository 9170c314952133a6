"""Plays the runs of a scenario, and of grids of scenarios, over several processes or the machines of a cluster.

What it gives does not depend on how many.
"""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of one variant of a scenario: a job for one process, wherever that runs."""

    number: int
    """Its place in the grid."""
    scenario: Scenario
    run_name: str
    check: bool


def play(cell: Cell) -> Figures:
    """Raises Broken where the cell is checked and something does not hold."""
    run = next(run for run in cell.scenario.runs if run.name == cell.run_name)
    world = World(cell.scenario, run, every_invariant=cell.check)
    story = world.play()
    if cell.check:
        world.check_the_end()
    return figures_of(cell.scenario, story)


def grid(sweeps: Mapping[str, Sequence[object]]) -> list[dict[str, object]]:
    """Every combination, the last key changing fastest; one empty combination without keys."""
    return [dict(zip(sweeps, values, strict=True)) for values in product(*sweeps.values())]


class Spread(Protocol):
    """Has jobs done, and gives each with what came of it, in the order in which they finish."""

    def __call__(self, work: Callable[[_Job], _Done], jobs: Iterable[_Job]) -> Iterator[tuple[_Job, _Done]]: ...


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


class Cluster(Protocol):
    """Other machines. A ticket stands for a job that was handed to them."""

    def submit(self, work: Callable[[Any], Any], job: object) -> object: ...

    def first_done(self, tickets: Sequence[object]) -> object:
        """Wait until one of them is done."""
        ...

    def result(self, ticket: object) -> Any:
        """What came of it; raises what the work raised there."""
        ...

    def cancel(self, ticket: object) -> None: ...


def all_done_on(
    cluster: Cluster, in_flight_max: int, work: Callable[[_Job], _Done], jobs: Iterable[_Job]
) -> Iterator[tuple[_Job, _Done]]:
    """As `all_done`, with so many jobs at the cluster at once. The first that fails ends all; none is left running."""
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
