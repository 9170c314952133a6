"""Raw data of the study: the figures of every run by seed, as they are committed beside the page. The page is made from
these alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.figures import Figures
from loadgen.studies.balanceroute.tables import perfect
from loadgen.studies.protocols.plan import (
    CROSS,
    CROSS_CASES,
    CROSSED,
    FULL_CASES,
    LONG_CASES,
    Case,
    Contender,
    ProtocolCell,
    balance_at,
    cases,
    shortened,
)

USUAL = (48, 0.9)
"""Horizon and discount of the comparison: the paper's."""
_DIGITS = 6
_KEPT = ("gap", "tokens_per_s", "tpot_p95_ms", "running", "mean", "aged", "expired", "degraded")
_FORESEEN = ("foreseen_share", "ending_share", "right_share")

Row = dict[str, Any]
Key = tuple[str, str, int, float, int, str, int, float]


def key_of(case: Case, contender: Contender, at: tuple[int, float]) -> Key:
    return case.load.name, case.procedure.name, case.batch, case.room_share, case.times, contender.title, *at


_KEYS = ("load", "procedure", "batch", "room_share", "times", "contender", "horizon", "discount")


@dataclass(frozen=True, slots=True)
class ProtocolRecord:
    """Figures of the runs by key, each a list with one value per seed."""

    seeds: Sequence[int]
    long_seeds: Sequence[int]
    """Seeds of the longer runs."""
    full_seeds: Sequence[int]
    """Seeds of the runs with full caches."""
    rows: Mapping[Key, Row]

    def runs(self, case: Case, contender: Contender, at: tuple[int, float] = USUAL) -> list[Figures]:
        """Figures of each seed, in order."""
        row = self.rows[key_of(case, contender, at)]
        return [{name: values[place] for name, values in row.items()} for place in range(len(row["gap"]))]

    def has(self, case: Case) -> bool:
        return all(key_of(case, each, USUAL) in self.rows for each in case.contenders)

    def document(self) -> dict[str, Any]:
        """JSON document: the seeds, and a row for each run."""
        rows = [dict(zip(_KEYS, key, strict=True)) | row for key, row in self.rows.items()]
        seeds = {"seeds": self.seeds, "long_seeds": self.long_seeds, "full_seeds": self.full_seeds}
        return {name: list(each) for name, each in seeds.items()} | {"runs": rows}


def read_record(document: Mapping[str, Any]) -> ProtocolRecord:
    """Record from its JSON document. Raises KeyError for one of another shape."""
    rows: dict[Key, Row] = {}
    for each in document["runs"]:
        row = dict(each)
        load, procedure, batch, room, times, contender, horizon, discount = (row.pop(name) for name in _KEYS)
        rows[load, procedure, batch, room, times, contender, horizon, discount] = row
    return ProtocolRecord(document["seeds"], document["long_seeds"], document["full_seeds"], rows)


def record_of(
    results: Mapping[ProtocolCell, Figures],
    seeds: Sequence[int],
    long_seeds: Sequence[int],
    full_seeds: Sequence[int],
    *,
    quick: bool = False,
) -> ProtocolRecord:
    """Record of the cells that were played; keys without all seeds are left out."""
    rows: dict[Key, Row] = {}

    def keep(case: Case, contender: Contender, at: tuple[int, float], of_seeds: Sequence[int]) -> None:
        cells = [case.cell(contender, seed, balance_at(*at)) for seed in of_seeds]
        found = [results.get(shortened(cell) if quick else cell) for cell in cells]
        played = [_kept(each) for each in found if each is not None]
        if played and len(played) == len(of_seeds):
            rows[key_of(case, contender, at)] = {name: [each[name] for each in played] for name in played[0]}

    for case in cases():
        for contender in case.contenders:
            keep(case, contender, USUAL, seeds)
    for case in CROSS_CASES:
        for contender in CROSSED:
            for at in CROSS:
                keep(case, contender, at, seeds)
    for longer, of_seeds in ((LONG_CASES, long_seeds), (FULL_CASES, full_seeds)):
        for case in longer:
            for contender in case.contenders:
                keep(case, contender, USUAL, of_seeds)
    return ProtocolRecord(seeds, long_seeds, full_seeds, rows)


def _kept(figures: Figures) -> Row:
    found = {name: figures[name] for name in _KEPT} | {"perfect": perfect(figures)}
    found |= {name: figures[name] for name in _FORESEEN if name in figures}
    return {name: float(f"{value:.{_DIGITS}g}") for name, value in found.items()}
