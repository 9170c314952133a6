"""Caches the figures of each cell under its inputs: the whole scenario, the files it reads, and the code.

A cached cell is not played again; a cell with any changed input is never found.
"""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from loadgen.figures import Figures
from loadgen.simulator.scenario import parse_scenario
from loadgen.studies.experiments import Cell
from loadgen.studies.play import play
from loadgen.studies.sources import version_of

_FILES_OF_TRACE = ("file", "rates")


class CellCache:
    """One file per cell, written whole or not at all, so that a stopped run can be continued."""

    def __init__(self, folder: Path, code: str) -> None:
        self._folder = folder
        self._code = code

    def key_of(self, cell: Cell) -> str:
        """Key of a cell; equal cells have equal keys, in any experiment."""
        document = cell.document()
        recorded = _take_recorded(document, cell.path.parent)
        scenario = parse_scenario(document, cell.path).model_dump(mode="json", exclude={"name", "about"})
        text = json.dumps([self._code, scenario, recorded], sort_keys=True, default=str)
        return blake2b(text.encode(), digest_size=20).hexdigest()

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


def code_version() -> str:
    """Version of all sources that figures depend on, and of the Python that runs them, whose random numbers may change
    between versions. A change to the display of figures invalidates nothing."""
    return f"{sys.implementation.cache_tag} {version_of(play.__module__)}"


def _take_recorded(document: dict[str, Any], folder: Path) -> list[object]:
    """Remove the file references from a scenario and return digests of the files: the key depends on their contents,
    not on their paths, and parsing them takes longer than all the rest."""
    found: list[object] = []
    for name, workload in sorted(document["workloads"].items()):
        if (questions := workload.pop("questions", None)) is not None:
            found.append([name, _digest_of(folder / questions)])
        if (trace := workload.pop("trace", None)) is not None:
            files = {key: _digest_of(folder / trace[key]) for key in _FILES_OF_TRACE if trace.get(key) is not None}
            found.append([name, trace | files])
            workload["bursts"] = {}
    return found + _take_recorded_clients(document)


def _take_recorded_clients(document: dict[str, Any]) -> list[object]:
    """Replace the client groups whose arrival times come from a trace, and return them: without the trace, which has
    been removed, their sections are not valid."""
    found: list[object] = []
    for number, section in enumerate(document["clients"]):
        if "clients" not in section and "arrivals" not in section:
            found.append([number, section])
            timeless = {key: value for key, value in section.items() if key != "shift"}
            document["clients"][number] = {**timeless, "clients": 1}
    return found


@cache
def _digest_of(file: Path) -> str:
    with file.open("rb") as opened:
        digest = blake2b(digest_size=20)
        while part := opened.read(2**20):
            digest.update(part)
    return digest.hexdigest()
