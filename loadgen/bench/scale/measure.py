"""Plays one point in a process of its own and records its cost: time, memory, requests. It judges nothing.

A run that exceeds a limit is stopped, and its cost until then is the measurement. A run that fails is no measurement.
"""

from __future__ import annotations

import gc
import multiprocessing
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from loadgen.bench.scale.points import SLOTS, ScalePoint, scenario_of
from loadgen.simulator.world import Story, World

_KIB = 1024
_GIB = 2**30
_SECOND_NS = 1_000_000_000
_TELL_EVERY_S = 5.0
"""Interval between two progress reports of a run."""
_LOOK_EVERY_CPU_S = 0.25
"""CPU time between two checks of the limits while a world is built."""
_LEAVE_MAX_S = 10.0
"""Time after its last message until a process is terminated if it has not ended."""


@dataclass(frozen=True, slots=True)
class ScaleLimits:
    """Limits of one run, including the building of its world. They are checked ten times a simulated second, and every
    `_LOOK_EVERY_CPU_S` while the world is built."""

    cpu_s: float
    rss_bytes_max: int

    def broken_by(self, progress: ScaleSample) -> str:
        """Description of the exceeded limit; empty if none is exceeded."""
        if progress.built_cpu_s + progress.cpu_s > self.cpu_s:
            return f"{self.cpu_s / 60:g} min of CPU"
        if progress.rss_bytes_max > self.rss_bytes_max:
            return f"{self.rss_bytes_max / _GIB:g} GiB"
        return ""


@dataclass(frozen=True, slots=True)
class ScaleSample:
    """Costs of a run so far."""

    simulated_s: float
    built_cpu_s: float
    wall_s: float
    cpu_s: float
    """Less than the wall time where the machine had other work to do."""
    rss_bytes_max: int
    requests: int
    """Requests sent by clients."""


@dataclass(frozen=True, slots=True)
class ScaleReading:
    """Costs of one run, and its load. None stands for values unknown because the run did not come to its end."""

    simulated_s: float
    """Simulated time reached, or last reported."""
    stopped_by: str
    """The limit that ended it; empty if none did."""
    built_cpu_s: float | None = None
    """CPU time of building the world, which is not part of the other times."""
    wall_s: float | None = None
    cpu_s: float | None = None
    """Less than the wall time where the machine had other work to do."""
    late_cpu_s: float | None = None
    """Part of `cpu_s` spent in the second half of the simulated time, when all users have arrived."""
    rss_bytes_max: int | None = None
    requests: int | None = None
    events: int | None = None
    """Events that gateway cores handled."""
    forwards: int | None = None
    busy_share: float | None = None
    """Share of the engines' slots in use, in the second half of the run."""
    queue_max: int | None = None
    digest: str | None = None
    killed_by: str = ""
    """The signal that ended its process; empty if none did."""

    @property
    def is_whole(self) -> bool:
        return not self.stopped_by and not self.killed_by

    @property
    def requests_per_cpu_s(self) -> float | None:
        return self.requests / self.cpu_s if self.requests is not None and self.cpu_s else None

    @property
    def cpu_us_a_request(self) -> float | None:
        return 1e6 * self.cpu_s / self.requests if self.cpu_s is not None and self.requests else None

    def cpu_s_for(self, simulated_s: float) -> float | None:
        """Estimated CPU time for `simulated_s`, extrapolated from the second half. None if that half was not
        measured."""
        if self.cpu_s is None or self.late_cpu_s is None or not self.simulated_s:
            return None
        return self.cpu_s + max(0.0, simulated_s - self.simulated_s) * self.late_cpu_s / (self.simulated_s / 2)


class RunFailed(Exception):
    """A run ended with an error of its own, so that it has no valid measurement."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """Error as text, since not every exception can be pickled into a pipe."""

    error: str
    where: str
    """Traceback of the error."""


class _TooMuch(Exception):
    """A limit was reached before the world was built."""

    def __init__(self, stopped_by: str, taken: ScaleSample) -> None:
        super().__init__(stopped_by)
        self.stopped_by = stopped_by
        self.taken = taken


def measure(point: ScalePoint, limits: ScaleLimits, on_progress: Callable[[ScaleSample], object]) -> ScaleReading:
    """Play the point in a fresh process, so that memory is this run's alone. The process ends with the run, so garbage
    collection is off there and reference counts free objects. Raises RunFailed."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_play_apart, args=(point, limits, theirs))
    process.start()
    theirs.close()
    try:
        return _followed(ours, process, on_progress)
    finally:
        ours.close()
        process.join(_LEAVE_MAX_S)
        if process.is_alive():
            process.kill()
            process.join()


def _followed(pipe: Connection, process: SpawnProcess, on_progress: Callable[[ScaleSample], object]) -> ScaleReading:
    """Receive a run's messages up to its last one; for a killed run, the result is its last progress report."""
    taken = None
    while True:
        try:
            told = pipe.recv()
        except (EOFError, OSError):  # OSError where the process was killed in the middle of a message
            return _reading_of_killed(taken, _killed_by(process))
        if isinstance(told, ScaleReading):
            return told
        if isinstance(told, _Failure):
            raise RunFailed(told.error) from RuntimeError(f"in the run's process:\n{told.where}")
        assert isinstance(told, ScaleSample)
        taken = told
        on_progress(taken)


def _killed_by(process: SpawnProcess) -> str:
    """Name of the signal that ended the process. Raises RunFailed if none did."""
    process.join(_LEAVE_MAX_S)
    if process.exitcode is None or process.exitcode >= 0:
        raise RunFailed(f"its process said nothing at its end; exit code {process.exitcode}")
    try:
        return signal.Signals(-process.exitcode).name
    except ValueError:  # real-time signals have no names
        return f"signal {-process.exitcode}"


def _reading_of_killed(taken: ScaleSample | None, killed_by: str) -> ScaleReading:
    if taken is None:
        return ScaleReading(simulated_s=0.0, stopped_by="", killed_by=killed_by)
    return ScaleReading(stopped_by="", killed_by=killed_by, **asdict(taken))


def _reading_of_unbuilt(stopped_by: str, taken: ScaleSample) -> ScaleReading:
    """Reading of a run stopped before any time was simulated."""
    return ScaleReading(0.0, stopped_by, taken.built_cpu_s, rss_bytes_max=taken.rss_bytes_max, requests=0)


def _play_apart(point: ScalePoint, limits: ScaleLimits, pipe: Connection) -> None:
    gc.disable()
    try:
        pipe.send(play(point, limits, pipe.send))
    except Exception as error:  # noqa: BLE001 - any error is sent; the parent raises it
        pipe.send(_Failure(f"{type(error).__name__}: {error}", traceback.format_exc()))


def play(point: ScalePoint, limits: ScaleLimits, on_progress: Callable[[ScaleSample], object]) -> ScaleReading:
    """Play the point in this process, in its main thread."""
    try:
        world, built_cpu_s = _built(point, limits)
    except _TooMuch as too_much:
        return _reading_of_unbuilt(too_much.stopped_by, too_much.taken)
    gauge = _Gauge(world, built_cpu_s, point.simulated_s, limits, on_progress)
    on_progress(gauge.taken())
    story = world.play(gauge.goes_on)
    taken = gauge.taken()
    return replace(
        ScaleReading(stopped_by=gauge.stopped_by, **asdict(taken)),
        late_cpu_s=taken.cpu_s - gauge.cpu_s_at(taken.simulated_s / 2),
        requests=len(story.records),
        events=story.events,
        forwards=story.counts.attempts["peer"],
        busy_share=_busy_share(story),
        queue_max=max(sample.queue for samples in story.samples.values() for sample in samples),
        digest=story.digest,
    )


def _built(point: ScalePoint, limits: ScaleLimits) -> tuple[World, float]:
    """The world, and the CPU time of building it. Raises _TooMuch."""
    from_s = time.process_time()

    def look() -> None:
        taken = ScaleSample(0.0, time.process_time() - from_s, 0.0, 0.0, _rss_bytes_max(), 0)
        if stopped_by := limits.broken_by(taken):
            raise _TooMuch(stopped_by, taken)

    with _looking(look):
        scenario = scenario_of(point)
        world = World(scenario, scenario.runs[0])
    look()
    return world, time.process_time() - from_s


@contextmanager
def _looking(look: Callable[[], None]) -> Iterator[None]:
    """Call `look` at intervals of CPU time from a signal handler, since building a world has no hook for it."""
    before = signal.signal(signal.SIGPROF, lambda *_: look())
    signal.setitimer(signal.ITIMER_PROF, _LOOK_EVERY_CPU_S, _LOOK_EVERY_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _rss_bytes_max() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB


class _Gauge:
    """Follows one run, reports its progress, and ends it at a limit."""

    def __init__(
        self,
        world: World,
        built_cpu_s: float,
        simulated_s: float,
        limits: ScaleLimits,
        on_progress: Callable[[ScaleSample], object],
    ) -> None:
        self._world = world
        self._built_cpu_s = built_cpu_s
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

    def taken(self) -> ScaleSample:
        progress = self._world.progress
        return ScaleSample(
            simulated_s=progress.simulated_ns / _SECOND_NS,
            built_cpu_s=self._built_cpu_s,
            wall_s=time.perf_counter() - self._wall_s,  # noqa: TID251
            cpu_s=time.process_time() - self._cpu_s,
            rss_bytes_max=_rss_bytes_max(),
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
