"""The one engine of the studies: plays cells over several processes, and caches the figures of each as soon as it is
done under its inputs: all that describes it, the files that it reads, and the code.

A cached cell is not played again, and one with any changed input is never found. The results depend neither on the
number of processes nor on earlier interruptions.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from loadgen.figures import Figures
from loadgen.simulator.sweep import all_done
from loadgen.studies.sources import version_of


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """One run of one setting with one seed: a job for one process."""

    place: Hashable
    """Name by which pages look the figures up; equal cells may have several places."""
    title: str
    work: partial[Figures]
    """Function that plays it; the figures may depend on all modules that the function's module imports."""
    inputs: object
    """JSON-able description of all that the figures depend on, besides the code and the files."""
    files: tuple[Path, ...] = ()
    """Files that it reads; the key depends on their contents, and not on their paths."""

    def key(self) -> str:
        """Key of the cache; equal cells have equal keys, in any study. Raises OSError for a file that cannot be
        read."""
        func = self.work.func
        code = f"{sys.implementation.cache_tag} {_libraries()} {_code_of(func.__module__)} {func.__qualname__}"
        text = json.dumps(
            [code, self.inputs, [_digest_of(file, _stamp_of(file)) for file in self.files]], sort_keys=True, default=str
        )
        return blake2b(text.encode(), digest_size=20).hexdigest()


class CellCache:
    """One file per cell, written whole or not at all, so that a stopped run can be continued."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, key: str) -> Figures | None:
        """Figures of a key; None if it was never played, or its file cannot be read."""
        try:
            found = json.loads(self._file(key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def keep(self, key: str, figures: Figures) -> None:
        file = self._file(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(figures), encoding="utf-8")
        unfinished.replace(file)

    def _file(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"


@dataclass(frozen=True, slots=True)
class Results:
    """Figures of the cells, by their places."""

    figures: Mapping[Any, Figures]
    failures: Mapping[str, str] = field(default_factory=dict)
    """Reasons why cells have no figures, by the cells' titles."""


@dataclass(frozen=True, slots=True)
class _Failure:
    reason: str


def play_all(
    cells: Iterable[Cell],
    cache_folder: Path,
    *,
    processes: int,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Results:
    """Play the cells. `on_progress` is given the numbers of finished and of all cells; equal ones are played once, and
    failed ones are tried again by the next run. Raises OSError for a file that cannot be read."""
    kept = CellCache(cache_folder)
    alike: dict[str, list[Cell]] = {}
    stamps: dict[Path, tuple[int, int] | None] = {}
    for cell in cells:
        stamps |= {file: _stamp_of(file) for file in cell.files}
        alike.setdefault(cell.key(), []).append(cell)
    keys = {id(several[0]): key for key, several in alike.items()}
    known = {key: found for key in alike if (found := kept.find(key)) is not None}
    failed: dict[str, str] = {}
    on_progress(len(known), len(alike))
    missing = [several[0] for key, several in alike.items() if key not in known]
    for cell, figures in all_done(_attempted, missing, processes=processes):
        key = keys[id(cell)]
        changed = [file.name for file in cell.files if _stamp_of(file) != stamps[file]]
        if isinstance(figures, _Failure):
            failed[key] = figures.reason
        elif changed:
            failed[key] = f"what it reads has changed since this was started, so start it again: {', '.join(changed)}"
        else:
            kept.keep(key, figures)
            known[key] = figures
        on_progress(len(known) + len(failed), len(alike))
    return Results(
        {cell.place: known[key] for key, several in alike.items() for cell in several if key in known},
        {cell.title: reason for key, reason in failed.items() for cell in alike[key]},
    )


def _attempted(cell: Cell) -> Figures | _Failure:
    """Figures, or the failure as a value, so that it does not end all other cells."""
    try:
        return cell.work()
    except Exception as error:  # noqa: BLE001 - any error is shown on the page
        return _Failure(f"{type(error).__name__}: {error}")


def _stamp_of(file: Path) -> tuple[int, int] | None:
    """Modification time in nanoseconds, and size; None for a missing file. Reading it would take longer than a cell."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


_code_of = cache(version_of)


@cache
def _libraries() -> str:
    """Versions of the libraries that fits and random numbers depend on."""
    found = []
    for name in ("numpy", "scikit-learn"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


@cache
def _digest_of(file: Path, _stamp: tuple[int, int] | None) -> str:
    with file.open("rb") as opened:
        digest = blake2b(digest_size=20)
        while part := opened.read(2**20):
            digest.update(part)
    return digest.hexdigest()
