"""Measures CPU use of this machine during a run, since a busy load generator measures itself. It only reads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from loadgen.report import MachineUse

_PROC = Path("/proc")
_IDLE_COLUMNS = (3, 4)
"""Columns of idle and iowait, in the order of proc(5)."""
_USER_COLUMN, _SYSTEM_COLUMN = 11, 12
"""Columns of utime and stime, counted from behind the name of the command."""


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU time of all CPUs together since the machine started, in clock ticks."""

    busy: int
    total: int
    own: int = 0
    """CPU time of the watched processes."""


def parse_machine_stat(text: str) -> CpuTimes:
    """Parse the first line of /proc/stat; the columns behind the eighth are contained in earlier ones."""
    columns = [int(column) for column in text.partition("\n")[0].split()[1:9]]
    return CpuTimes(sum(columns) - sum(columns[index] for index in _IDLE_COLUMNS), sum(columns))


def parse_process_stat(text: str) -> int:
    """Parse the CPU ticks in /proc/PID/stat."""
    columns = text.rpartition(")")[2].split()
    return int(columns[_USER_COLUMN]) + int(columns[_SYSTEM_COLUMN])


def read_cpu_times(pids: Iterable[int], proc: Path = _PROC) -> CpuTimes | None:
    """Read the CPU times; None on a system without /proc."""
    try:
        machine = parse_machine_stat((proc / "stat").read_text())
        own = sum(parse_process_stat((proc / str(pid) / "stat").read_text()) for pid in pids)
    except OSError:
        return None
    return CpuTimes(machine.busy, machine.total, own)


@dataclass(slots=True)
class CpuSampler:
    """Takes a sample every `interval_s` while `run` runs."""

    pids: tuple[int, ...]
    interval_s: float = 1.0
    samples: list[CpuTimes] = field(default_factory=list)

    async def run(self) -> None:
        while (times := read_cpu_times(self.pids)) is not None:
            self.samples.append(times)
            await asyncio.sleep(self.interval_s)

    @property
    def latest_share(self) -> float | None:
        return _busy_share(*self.samples[-2:]) if len(self.samples) > 1 else None

    def use(self) -> MachineUse | None:
        """Use from the first sample to the last; None with fewer than two samples."""
        if len(self.samples) < 2:
            return None
        first, last = self.samples[0], self.samples[-1]
        return MachineUse(
            mean_share=_busy_share(first, last),
            peak_share=max(_busy_share(before, after) for before, after in pairwise(self.samples)),
            own_share=_share(last.own - first.own, last.total - first.total),
        )


def _busy_share(before: CpuTimes, after: CpuTimes) -> float:
    return _share(after.busy - before.busy, after.total - before.total)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
