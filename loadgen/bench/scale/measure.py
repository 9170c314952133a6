"""Plays one point in a process of its own and notes what it took: time, memory, requests. It judges nothing.

A run that takes more than it may is stopped, and what it had taken by then is what was measured.
"""

from __future__ import annotations

import gc
import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

from loadgen.bench.scale.points import SLOTS, Point, scenario_of
from loadgen.simulator.world import Story, World

_KIB = 1024
_GIB = 2**30
_SECOND_NS = 1_000_000_000
_TELL_EVERY_S = 5.0
"""Between two words on how far a run has come."""
_LEAVE_MAX_S = 10.0
"""A process that has said its last is gone after this, or is made to go."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may take. It is looked at ten times a simulated second."""

    cpu_s: float
    rss_bytes_max: int

    def broken_by(self, progress: Taken) -> str:
        """In words; nothing while all is well."""
        if progress.cpu_s > self.cpu_s:
            return f"{self.cpu_s / 60:g} min of CPU"
        if progress.rss_bytes_max > self.rss_bytes_max:
            return f"{self.rss_bytes_max / _GIB:g} GiB"
        return ""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a run has taken so far."""

    simulated_s: float
    wall_s: float
    cpu_s: float
    """Less than the wall's where the machine had other things to do."""
    rss_bytes_max: int
    requests: int
    """Sent by clients."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one run took, and how busy it was."""

    simulated_s: float
    """How far it came."""
    stopped_by: str
    """The limit that ended it, or what else did; empty if nothing."""
    built_cpu_s: float
    """To build the world, which is in none of the other times."""
    wall_s: float
    cpu_s: float
    """Less than the wall's where the machine had other things to do."""
    late_cpu_s: float
    """Of that, in the second half of the simulated time, when everybody has long come."""
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
        return self.requests / self.cpu_s if self.cpu_s else 0.0

    @property
    def cpu_us_a_request(self) -> float:
        return 1e6 * self.cpu_s / self.requests if self.requests else 0.0

    def cpu_s_for(self, simulated_s: float) -> float:
        """What it would take to go on to there, as in its second half."""
        return self.cpu_s + max(0.0, simulated_s - self.simulated_s) * self.late_cpu_s / max(self.simulated_s / 2, 1e-9)


def measure(point: Point, limits: Limits, on_progress: Callable[[Taken], object]) -> Reading:
    """In a fresh process, so that memory is this run's alone. It ends with the run, so that nobody collects garbage
    there: what a run leaves behind is freed by reference counts."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_play_apart, args=(point, limits, theirs))
    process.start()
    theirs.close()
    try:
        return _followed(ours, on_progress)
    finally:
        ours.close()
        process.join(_LEAVE_MAX_S)
        if process.is_alive():
            process.kill()
            process.join()


def _followed(pipe: Connection, on_progress: Callable[[Taken], object]) -> Reading:
    """Up to its last word; of one that was killed there is what it told before."""
    taken = Taken(0.0, 0.0, 0.0, 0, 0)
    while True:
        try:
            told = pipe.recv()
        except EOFError:
            return _reading_of_killed(taken)
        if isinstance(told, Reading):
            return told
        assert isinstance(told, Taken)
        taken = told
        on_progress(taken)


def _reading_of_killed(taken: Taken) -> Reading:
    return Reading(
        taken.simulated_s,
        "its process was killed",
        built_cpu_s=0.0,
        wall_s=taken.wall_s,
        cpu_s=taken.cpu_s,
        late_cpu_s=taken.cpu_s / 2,
        rss_bytes_max=taken.rss_bytes_max,
        requests=taken.requests,
        events=0,
        forwards=0,
        busy_share=0.0,
        queue_max=0,
        digest="",
    )


def _play_apart(point: Point, limits: Limits, pipe: Connection) -> None:
    gc.disable()
    pipe.send(play(point, limits, pipe.send))


def play(point: Point, limits: Limits, on_progress: Callable[[Taken], object]) -> Reading:
    """Play it here."""
    before_s = time.process_time()
    scenario = scenario_of(point)
    world = World(scenario, scenario.runs[0])
    built_cpu_s = time.process_time() - before_s
    gauge = _Gauge(world, point.simulated_s, limits, on_progress)
    story = world.play(gauge.goes_on)
    taken = gauge.taken()
    return Reading(
        simulated_s=taken.simulated_s,
        stopped_by=gauge.stopped_by,
        built_cpu_s=built_cpu_s,
        wall_s=taken.wall_s,
        cpu_s=taken.cpu_s,
        late_cpu_s=taken.cpu_s - gauge.cpu_s_at(taken.simulated_s / 2),
        rss_bytes_max=taken.rss_bytes_max,
        requests=len(story.records),
        events=story.events,
        forwards=story.counts.attempts["peer"],
        busy_share=_busy_share(story),
        queue_max=max(sample.queue for samples in story.samples.values() for sample in samples),
        digest=story.digest,
    )


class _Gauge:
    """Follows one run, tells how it goes, and ends it at a limit."""

    def __init__(
        self, world: World, simulated_s: float, limits: Limits, on_progress: Callable[[Taken], object]
    ) -> None:
        self._world = world
        self._limits = limits
        self._on_progress = on_progress
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()  # noqa: TID251 - a bench
        self._told_s = 0.0
        self._end_s = simulated_s
        self._cpu_s_at: list[tuple[float, float]] = [(0.0, 0.0)]
        self.stopped_by = ""

    def goes_on(self) -> bool:
        taken = self.taken()
        self._cpu_s_at.append((taken.simulated_s, taken.cpu_s))
        if taken.wall_s - self._told_s >= _TELL_EVERY_S:
            self._told_s = taken.wall_s
            self._on_progress(taken)
        if taken.simulated_s < self._end_s:
            self.stopped_by = self._limits.broken_by(taken)
        return not self.stopped_by

    def taken(self) -> Taken:
        progress = self._world.progress
        return Taken(
            simulated_s=progress.simulated_ns / _SECOND_NS,
            wall_s=time.perf_counter() - self._wall_s,  # noqa: TID251
            cpu_s=time.process_time() - self._cpu_s,
            rss_bytes_max=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB,
            requests=progress.requests,
        )

    def cpu_s_at(self, simulated_s: float) -> float:
        return max(cpu_s for at_s, cpu_s in self._cpu_s_at if at_s <= simulated_s)


def _busy_share(story: Story) -> float:
    used = [
        min(outstanding, SLOTS)
        for samples in story.samples.values()
        for sample in samples[len(samples) // 2 :]
        for outstanding in sample.outstanding
    ]
    return sum(used) / len(used) / SLOTS
