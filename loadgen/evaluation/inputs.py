"""Which files a cell reads, and whether they are still what they were when its key was taken.

It looks at them from outside and reads none: that would take longer than the cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from loadgen.evaluation.experiments import Cell

_KEYS_OF_FILES = frozenset({"file", "rates", "questions", "round_trips"})
"""Wherever they stand in a scenario."""
Stamp = tuple[int, int] | None
"""When a file was last written, in nanoseconds, and its size; None where there is none."""


def files_of(cell: Cell) -> list[Path]:
    """The scenario itself, and whatever it names."""
    return [cell.path, *(cell.path.parent / name for name in _named_in(cell.document()))]


def stamp_of(file: Path) -> Stamp:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def changed(stamps: Mapping[Path, Stamp]) -> list[str]:
    """The names of the files that are no longer what they were."""
    return [file.name for file, stamp in stamps.items() if stamp_of(file) != stamp]


def _named_in(part: object) -> Iterator[str]:
    if isinstance(part, Mapping):
        yield from (value for key, value in part.items() if key in _KEYS_OF_FILES and isinstance(value, str))
        for value in part.values():
            yield from _named_in(value)
    elif isinstance(part, list | tuple):
        for value in part:
            yield from _named_in(value)
