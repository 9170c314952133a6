"""Reads the table of network round trips between regions from a file.

It must know nothing of how, or whether, anything is sent.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from gateway.core.vocabulary import RegionName


@dataclass(frozen=True, slots=True)
class RoundTripTable:
    """Round trips between regions in seconds, the same in both directions."""

    seconds: Mapping[frozenset[RegionName], float]

    @property
    def regions(self) -> tuple[RegionName, ...]:
        return tuple(sorted({region for pair in self.seconds for region in pair}))

    def round_trip_s(self, one: RegionName, other: RegionName) -> float:
        """Round trip between two regions: zero within a region. Raises KeyError for a pair that the table does not
        hold."""
        return 0.0 if one == other else self.seconds[frozenset((one, other))]


def read_round_trips(path: Path) -> RoundTripTable:
    return parse_round_trips(path.read_text())


def parse_round_trips(text: str) -> RoundTripTable:
    """Parse lines of `region,region,milliseconds`; `#` begins a comment. Raises ValueError naming the faulty line."""
    seconds: dict[frozenset[RegionName], float] = {}
    for row in csv.reader(StringIO(_without_comments(text))):
        pair, round_trip_s = _parse_row(row)
        if pair in seconds:
            raise ValueError(f"round trips: {','.join(row)}: this pair is in the table twice")
        seconds[pair] = round_trip_s
    return RoundTripTable(seconds)


def _without_comments(text: str) -> str:
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def _parse_row(row: list[str]) -> tuple[frozenset[RegionName], float]:
    where = f"round trips: {','.join(row)}"
    if len(row) != 3:
        raise ValueError(f"{where}: expected region,region,milliseconds")
    pair = frozenset(RegionName(cell.strip()) for cell in row[:2])
    try:
        milliseconds = float(row[2])
    except ValueError:
        raise ValueError(f"{where}: {row[2]!r} is not a number") from None
    if len(pair) != 2 or not 0 <= milliseconds < 60_000:
        raise ValueError(f"{where}: expected two different regions and 0 to 60000 milliseconds")
    return pair, milliseconds / 1000
