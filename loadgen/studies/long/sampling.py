"""Reads what processes hold and what folders have grown to. It only reads, and judges nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from loadgen.studies.long.flatness import ProcessSample

_PROC = Path("/proc")
_REQUEST = b'"event":"request"'


def read_process(at_s: float, name: str, pid: int, proc: Path = _PROC) -> ProcessSample | None:
    """One process now; None where it has ended."""
    folder = proc / str(pid)
    try:
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
        descriptors = sum(1 for _ in (folder / "fd").iterdir())
        return ProcessSample(at_s, name, pid, int(status["VmRSS"].split()[0]), descriptors, int(status["Threads"]))
    except (OSError, KeyError):  # a process that has just ended has no memory
        return None


class RequestLines:
    """Counts the lines of gateways' logs that are about a request, as the logs grow: a forwarded one has a line at each
    gateway that it passed."""

    def __init__(self) -> None:
        self._seen: dict[Path, int] = {}
        """Bytes of each log that have been read."""
        self._lines = 0

    def count(self, logs: Iterable[Path]) -> int:
        for log in logs:
            with log.open("rb") as file:
                file.seek(self._seen.get(log, 0))
                whole = file.read().rpartition(b"\n")[0]
            self._seen[log] = self._seen.get(log, 0) + len(whole)
            self._lines += whole.count(_REQUEST)
        return self._lines


def stored_bytes(patterns: Mapping[str, tuple[Path, str]]) -> dict[str, int]:
    """Bytes of the files of each kind, which a folder and a pattern in it name."""
    return {kind: sum(_size(file) for file in folder.glob(pattern)) for kind, (folder, pattern) in patterns.items()}


def largest_bytes(patterns: Mapping[str, tuple[Path, str]]) -> dict[str, int]:
    """Bytes of the largest file of each kind; 0 without one."""
    return {
        kind: max((_size(file) for file in folder.glob(pattern)), default=0)
        for kind, (folder, pattern) in patterns.items()
    }


def _size(file: Path) -> int:
    with suppress(OSError):  # the file was just deleted or renamed
        return file.stat().st_size if file.is_file() else 0
    return 0
