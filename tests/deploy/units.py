"""Reads systemd's units, which may give a key more than once."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))


def settings(unit: Path) -> dict[str, list[str]]:
    """Settings of all sections together, since no key has two meanings in these units."""
    found = defaultdict[str, list[str]](list)
    for line in unit.read_text().splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            found[key].append(value)
    return found


def setting(unit: Path, key: str) -> str:
    (value,) = settings(unit)[key]
    return value


def seconds(text: str) -> int:
    """Seconds of a time span as these files write it: 630s, 10m."""
    return int(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]
