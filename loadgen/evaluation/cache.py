"""Remembers what came of each cell, under what it was made of: the whole scenario, the files it reads, and the code.

A cell that is found is not played again; nothing that has changed is ever found.
"""

from __future__ import annotations

import json
import os
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from loadgen.evaluation.experiments import Cell
from loadgen.figures import Figures
from loadgen.simulator.scenario import parse_scenario

_ROOT = Path(__file__).parents[2]
_SOURCES = (
    "gateway/core",
    "loadgen/simulator",
    "loadgen/engine/model.py",
    "loadgen/engine/presets.py",
    "loadgen/engine/tokens.py",
    "loadgen/traces",
    "loadgen/workload.py",
    "loadgen/passages.py",
    "loadgen/questions.py",
    "loadgen/figures.py",
    "loadgen/round_trips.py",
)
"""Everything that a simulated run's figures depend on. A change to how they are shown loses nothing."""


class CellCache:
    """One file a cell, written whole or not at all, so that a run which was stopped goes on where it was."""

    def __init__(self, folder: Path, code: str) -> None:
        self._folder = folder
        self._code = code

    def key_of(self, cell: Cell) -> str:
        """The same for cells that are the same, whichever experiment they belong to."""
        document = cell.document()
        recorded = _take_recorded(document)
        scenario = parse_scenario(document, cell.path).model_dump(mode="json", exclude={"name", "about"})
        text = json.dumps([self._code, scenario, recorded], sort_keys=True, default=str)
        return blake2b(text.encode(), digest_size=20).hexdigest()

    def find(self, key: str) -> Figures | None:
        """What came of it; None if it was never played, or its file cannot be read."""
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


def code_version(root: Path = _ROOT) -> str:
    """A digest of all sources that figures depend on."""
    digest = blake2b(digest_size=20)
    for name in _SOURCES:
        place = root / name
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(file.relative_to(root).as_posix().encode() + b"\0")
            digest.update(file.read_bytes() if file.exists() else b"")
    return digest.hexdigest()


def _take_recorded(document: dict[str, Any]) -> list[object]:
    """What a scenario reads from files, taken out of it: where they lie is not what they hold, and parsing them takes
    longer than all the rest."""
    found: list[object] = []
    for name, workload in sorted(document["workloads"].items()):
        if (questions := workload.pop("questions", None)) is not None:
            found.append([name, _digest_of(Path(questions))])
        if (trace := workload.pop("trace", None)) is not None:
            found.append([name, trace | {"file": _digest_of(Path(trace["file"]))}])
            workload["bursts"] = {}
    return found


@cache
def _digest_of(file: Path) -> str:
    with file.open("rb") as opened:
        digest = blake2b(digest_size=20)
        while part := opened.read(2**20):
            digest.update(part)
    return digest.hexdigest()
