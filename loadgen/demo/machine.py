"""How busy this machine is while a run goes on, since a busy load generator measures itself. It only reads."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from loadgen.report import MachineUse

_PROC_STAT = Path("/proc/stat")
_IDLE_COLUMNS = (3, 4)
"""idle and iowait, in the order of proc(5)."""


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Time of all CPUs together since the machine started, in clock ticks."""

    busy: int
    total: int


def parse_proc_stat(text: str) -> CpuTimes:
    columns = [int(column) for column in text.partition("\n")[0].split()[1:9]]
    return CpuTimes(sum(columns) - sum(columns[index] for index in _IDLE_COLUMNS), sum(columns))


def read_cpu_times(path: Path = _PROC_STAT) -> CpuTimes | None:
    """None on a system that keeps no such file."""
    try:
        return parse_proc_stat(path.read_text())
    except OSError:
        return None


@dataclass(slots=True)
class CpuSampler:
    """Takes a sample every second while `run` runs."""

    interval_s: float = 1.0
    samples: list[CpuTimes] = field(default_factory=list)

    async def run(self) -> None:
        while (times := read_cpu_times()) is not None:
            self.samples.append(times)
            await asyncio.sleep(self.interval_s)

    @property
    def latest_share(self) -> float | None:
        return _share(self.samples[-2], self.samples[-1]) if len(self.samples) > 1 else None

    def use(self) -> MachineUse | None:
        """From the first sample to the last; None with fewer than two."""
        if len(self.samples) < 2:
            return None
        shares = [_share(before, after) for before, after in zip(self.samples, self.samples[1:], strict=False)]
        return MachineUse(_share(self.samples[0], self.samples[-1]), max(shares))


def _share(before: CpuTimes, after: CpuTimes) -> float:
    total = after.total - before.total
    return (after.busy - before.busy) / total if total else 0.0
