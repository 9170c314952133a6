"""Plays one point in a process of its own and notes what it took: time, memory, requests. It judges nothing."""

from __future__ import annotations

import gc
import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from loadgen.bench.scale.points import SLOTS, Point, scenario_of
from loadgen.simulator.world import Story, World

_KIB = 1024


@dataclass(frozen=True, slots=True)
class Reading:
    """What one run took, and how busy it was."""

    wall_s: float
    cpu_s: float
    """Less than the wall's where the machine had other things to do."""
    rss_bytes_max: int
    requests: int
    events: int
    """That gateway cores took in."""
    forwards: int
    busy_share: float
    """Of the engines' slots, in the second half of the run."""
    queue_max: int
    digest: str

    @property
    def requests_per_cpu_s(self) -> float:
        return self.requests / self.cpu_s

    @property
    def cpu_us_a_request(self) -> float:
        return 1e6 * self.cpu_s / self.requests


def measure(point: Point) -> Reading:
    """In a fresh process, so that memory is this run's alone. It ends with the run, so that nobody collects garbage
    there: what a run leaves behind is freed by reference counts."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=gc.disable) as pool:
        return pool.submit(play, point).result()


def play(point: Point) -> Reading:
    """Play it here. The building of the world is not counted."""
    scenario = scenario_of(point)
    world = World(scenario, scenario.runs[0])
    wall, cpu = time.perf_counter(), time.process_time()  # noqa: TID251 - a bench
    story = world.play()
    return Reading(
        wall_s=time.perf_counter() - wall,  # noqa: TID251
        cpu_s=time.process_time() - cpu,
        rss_bytes_max=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB,
        requests=len(story.records),
        events=story.events,
        forwards=story.counts.attempts["peer"],
        busy_share=_busy_share(story),
        queue_max=max(sample.queue for samples in story.samples.values() for sample in samples),
        digest=story.digest,
    )


def _busy_share(story: Story) -> float:
    used = [
        min(outstanding, SLOTS)
        for samples in story.samples.values()
        for sample in samples[len(samples) // 2 :]
        for outstanding in sample.outstanding
    ]
    return sum(used) / len(used) / SLOTS
