"""Writes the placements of a fit's clusters, one file for each seat, and an index that ties them to their artifact."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mesh.private_files import named

INDEX = "index.json"
"""File that is written last: it is missing beside files of which some may belong to another fit."""
_SEAT = re.compile(r"seat-\d+\.json")


def write_seats(folder: Path, documents: Sequence[dict[str, Any]], artifact: str, engine: str) -> None:
    """Write `seat-N.json` for each document, each whole or not at all, and remove those of an earlier fit with more
    clusters. `artifact`: digest of the artifact, for the index alone, since engines read the keys of a seat's file as
    arguments. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX).unlink(missing_ok=True)
    names = [f"seat-{seat}.json" for seat in range(len(documents))]
    for old in sorted(folder.iterdir()):
        if _SEAT.fullmatch(old.name) and old.name not in names:
            old.unlink()
    for name, document in zip(names, documents, strict=True):
        _write_whole(folder / name, document)
    _write_whole(folder / INDEX, {"artifact": artifact, "engine": engine, "seats": names})


def _write_whole(path: Path, document: dict[str, Any]) -> None:
    fresh = path.with_name(f"{path.name}.new")
    with named(fresh), fresh.open("w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
