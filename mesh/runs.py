"""Finds the runs of a program whose journals lie in one folder, and which of them can be replayed from the start. It
goes by file names, and changes no file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import click
from msgspec import Struct

from mesh.journal import JournalUnreadable

_NAME = re.compile(r"(?P<run>.+)-(?P<part>\d{6})\.journal")
_NAMED_MAX = 20


class JournalRun(Struct, frozen=True):
    name: str
    files: tuple[Path, ...]
    """Files of the run in their order."""
    is_whole: bool
    """No file at the beginning or in between is missing."""
    written_ns: int

    def __str__(self) -> str:
        count = f"{len(self.files)} file{'s' if len(self.files) > 1 else ''}"
        return f"{self.name} ({count}{'' if self.is_whole else ', its beginning is gone'})"


def runs_in(folder: Path) -> list[JournalRun]:
    """Runs in a folder, the newest first."""
    found: dict[str, dict[int, Path]] = {}
    for path in folder.iterdir():
        match = _NAME.fullmatch(path.name)
        if match is not None:
            found.setdefault(match["run"], {})[int(match["part"])] = path
    runs = []
    for name, parts in found.items():
        files = tuple(parts[number] for number in sorted(parts))
        is_whole = sorted(parts) == list(range(len(parts)))
        runs.append(JournalRun(name, files, is_whole, max(path.stat().st_mtime_ns for path in files)))
    return sorted(runs, key=lambda run: (run.written_ns, run.name), reverse=True)


def files_of_one_run(paths: Sequence[Path], wanted: str | None) -> tuple[Path, ...]:
    """Files to replay: the given files, or the files of one run in the given folder, which is the wanted run, else the
    newest whole one. The runs of a folder are listed on standard error. Raises JournalUnreadable."""
    if not any(path.is_dir() for path in paths):
        if wanted is not None:
            raise JournalUnreadable("--run picks one of a folder's runs: give a folder")
        return tuple(paths)
    if len(paths) > 1:
        raise JournalUnreadable("give one folder, or files")
    (folder,) = paths
    runs = runs_in(folder)
    if not runs:
        raise JournalUnreadable(f"{folder}: no journal is in it")
    picked = _picked(runs, wanted, folder)
    click.echo(f"{len(runs)} runs in {folder}: {_named(runs)}; this is {picked.name}", err=True)
    return picked.files


def _picked(runs: list[JournalRun], wanted: str | None, folder: Path) -> JournalRun:
    if wanted is None:
        return next((run for run in runs if run.is_whole), runs[0])
    for run in runs:
        if run.name == wanted:
            return run
    raise JournalUnreadable(f"{folder}: no run {wanted!r} is in it; there are {_named(runs)}")


def _named(runs: list[JournalRun]) -> str:
    more = f" and {len(runs) - _NAMED_MAX} older ones" if len(runs) > _NAMED_MAX else ""
    return ", ".join(map(str, runs[:_NAMED_MAX])) + more
