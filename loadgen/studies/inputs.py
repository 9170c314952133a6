"""Determines the files that a cell reads, and whether they have changed since its key was taken.

It compares their metadata and reads no contents: that would take longer than the cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from loadgen.studies.experiments import Cell

_KEYS_OF_FILES = frozenset({"file", "rates", "questions", "round_trips"})
"""Keys of file names, at any place in a scenario."""
Stamp = tuple[int, int] | None
"""Modification time of a file in nanoseconds, and its size; None for a missing file."""


def files_of(cell: Cell) -> list[Path]:
    """The scenario file, and all files that it names."""
    return [cell.path, *(cell.path.parent / name for name in _named_in(cell.document()))]


def stamp_of(file: Path) -> Stamp:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def changed(stamps: Mapping[Path, Stamp]) -> list[str]:
    """Names of the files that have changed."""
    return [file.name for file, stamp in stamps.items() if stamp_of(file) != stamp]


def _named_in(part: object) -> Iterator[str]:
    if isinstance(part, Mapping):
        yield from (value for key, value in part.items() if key in _KEYS_OF_FILES and isinstance(value, str))
        for value in part.values():
            yield from _named_in(value)
    elif isinstance(part, list | tuple):
        for value in part:
            yield from _named_in(value)
