"""Plays the page's cells without a cached result of the same code and the same files, and caches each as soon as it is
done, so that a run can be stopped and continued."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path

from loadgen.figures import Figures
from loadgen.simulator.sweep import all_done
from loadgen.studies.cache import CellCache
from loadgen.studies.sources import version_of
from loadgen.studies.token_budget import days, sizing, tuning
from loadgen.studies.token_budget.workloads import WORKLOADS


@dataclass(frozen=True, slots=True)
class Cell:
    """One job: all inputs of its figures except the code and the load's files."""

    kind: str
    """`sized`, `latency`, `tuned` or `day`."""
    load: str
    design: str = ""
    condition: str = ""
    threshold: int = 0
    """Threshold in tokens; 0 for one that tunes itself."""
    seed: int = 0
    quick: bool = False


Results = dict[Cell, Figures]


def play_cells(
    cells: Sequence[Cell],
    cache_folder: Path,
    traces: Path | None,
    *,
    processes: int,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Results:
    """Figures of the cells. Raises TraceError where a file is missing."""
    kept = CellCache(cache_folder, "")
    keys = {cell: _key_of(cell, traces) for cell in dict.fromkeys(cells)}
    found = {cell: figures for cell, key in keys.items() if (figures := kept.find(key)) is not None}
    missing = [cell for cell in keys if cell not in found]
    on_progress(len(found), len(keys))
    for cell, figures in all_done(partial(figures_of, traces), missing, processes=processes):
        kept.keep(keys[cell], figures)
        found[cell] = figures
        on_progress(len(found), len(keys))
    return found


def figures_of(traces: Path | None, cell: Cell) -> Figures:
    match cell.kind:
        case "sized":
            return sizing.sized(cell.load, traces, quick=cell.quick)
        case "latency":
            return sizing.latency(cell.load, cell.design, is_steady=cell.condition == "steady", quick=cell.quick)
        case "tuned":
            setting = tuning.Setting(cell.load, cell.condition, cell.threshold, cell.seed, cell.quick)
            return tuning.play(setting, traces)
        case "day":
            return days.play(cell.load, cell.design, cell.condition, traces, quick=cell.quick)
        case _:
            raise AssertionError(f"nobody plays {cell.kind}")


_PLAYED_BY = {"sized": sizing, "latency": sizing, "tuned": tuning, "day": days}


@cache
def _code_version(kind: str) -> str:
    """Version of all code that a cell's figures depend on."""
    return f"{sys.implementation.cache_tag} {version_of(_PLAYED_BY[kind].__name__)}"


def _key_of(cell: Cell, traces: Path | None) -> str:
    files = _files_of(cell.kind, cell.load, traces)
    text = json.dumps([_code_version(cell.kind), asdict(cell), files], sort_keys=True)
    return blake2b(text.encode(), digest_size=20).hexdigest()


@cache
def _files_of(kind: str, load: str, traces: Path | None) -> list[str]:
    """Digests of the files that a cell reads; the paper's loads are synthetic and read none."""
    if kind == "day":
        files = [] if traces is None or not (traces / days.CURVE).exists() else [traces / days.CURVE]
    else:
        files = (WORKLOADS[load].files(traces) or []) if load in WORKLOADS else []
    return [blake2b(file.read_bytes(), digest_size=20).hexdigest() for file in files]
