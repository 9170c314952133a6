"""Reads how much memory this process may use: the machine's, or less where a control group says so. It only reads files
of the kernel, and a file that cannot be read sets no bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_KIBIBYTE = 1024


def memory_bytes(proc: Path = _PROC, groups: Path = _GROUPS) -> int | None:
    """Bytes of the machine's memory, or the smallest bound of the control groups around this process; None where
    neither is known."""
    return min((*_of_machine(proc), *_of_groups(proc, groups)), default=None)


def _of_machine(proc: Path) -> Iterator[int]:
    for line in _lines(proc / "meminfo"):
        if line.startswith("MemTotal:"):
            yield int(line.split()[1]) * _KIBIBYTE


def _of_groups(proc: Path, groups: Path) -> Iterator[int]:
    """Yield the bounds of the process's group and of all groups around it. Version 2 has one tree of groups; version 1
    has one for memory."""
    for line in _lines(proc / "self/cgroup"):
        _, kinds, path = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        root, name = (groups / "memory", "memory.limit_in_bytes") if kinds else (groups, "memory.max")
        inside = PurePosixPath(path.lstrip("/"))
        for group in (inside, *inside.parents):
            yield from (int(text) for text in _lines(root / group / name) if text.isdigit())


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
