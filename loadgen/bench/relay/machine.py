"""Reads from this machine the CPU time and the memory of a process tree, and the machine's description.

Linux only, from /proc. It changes nothing.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

PROC = Path("/proc")
_PROCESS_CLOCK = 2
"""CPUCLOCK_SCHED of a whole process, in the clock ids that clock_getcpuclockid(3) makes of a PID."""


def parse_parent(stat: str) -> int:
    """Parse the parent's PID in /proc/PID/stat; the command's name may hold any character."""
    return int(stat.rpartition(")")[2].split()[1])


def parse_pss_kib(rollup: str) -> int:
    """Parse the proportional set size in /proc/PID/smaps_rollup. Raises ValueError if it is missing."""
    for line in rollup.splitlines():
        name, _, rest = line.partition(":")
        if name == "Pss":
            return int(rest.split()[0])
    raise ValueError("no line `Pss`")


def parse_cpu_name(cpuinfo: str) -> str:
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return "unknown"


def descendants(root: int, parents: dict[int, int]) -> list[int]:
    """`root` and every process below it, given each process's parent."""
    found = [root]
    for pid in found:
        found += sorted(child for child, parent in parents.items() if parent == pid)
    return found


def process_tree(root: int, proc: Path = PROC) -> list[int]:
    return descendants(root, dict(_parents(proc)))


def _parents(proc: Path) -> Iterable[tuple[int, int]]:
    for folder in proc.iterdir():
        if folder.name.isdigit():
            try:
                yield int(folder.name), parse_parent((folder / "stat").read_text())
            except OSError:  # the process ended meanwhile
                continue


def cpu_ns(pids: Iterable[int]) -> int:
    """CPU time of the processes with all their threads, including ended ones. /proc counts it only in hundredths of a
    second. Raises OSError when a process is gone."""
    return sum(time.clock_gettime_ns((~pid << 3) | _PROCESS_CLOCK) for pid in pids)


def pss_kib(pids: Iterable[int], proc: Path = PROC) -> int:
    return sum(parse_pss_kib((proc / str(pid) / "smaps_rollup").read_text()) for pid in pids)


def usable_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def describe_machine() -> dict[str, object]:
    return {
        "cpu": parse_cpu_name((PROC / "cpuinfo").read_text()),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "kernel": platform.release(),
        "python": f"{platform.python_implementation()} {platform.python_version()}, {platform.python_compiler()}",
        "core": "compiled" if is_core_compiled() else "plain Python",
    }


def is_core_compiled() -> bool:
    spec = find_spec("gateway.core.placement.placer")
    return spec is not None and spec.origin is not None and not spec.origin.endswith(".py")
