"""Files that come with the program and can be named without a path: scenarios, and a small recorded load.

It finds files and reads none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

_HERE = Path(__file__).parent
SCENARIOS = _HERE / "scenarios"
SAMPLE_TRACE = _HERE / "traces/sample.jsonl"


def scenarios() -> dict[str, Path]:
    """Paths of the scenarios by name, in alphabetical order."""
    return {path.stem: path for path in sorted(SCENARIOS.glob("*.yaml"))}


class ShippedPath(click.Path):
    """Parameter type for a file or the name of a shipped one; an existing file wins."""

    def __init__(self, kind: str, shipped: Mapping[str, Path], *, takes_folders: bool = False) -> None:
        super().__init__(exists=True, dir_okay=takes_folders, path_type=Path)
        self.kind = kind
        self.shipped = shipped

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        name = str(value)
        if not Path(name).exists():
            if name in self.shipped:
                return self.shipped[name]
            if Path(name).name == name:
                names = ", ".join(self.shipped)
                self.fail(f"there is no file {name}, and no {self.kind} of that name; those that come along: {names}")
        return Path(str(super().convert(name, param, ctx)))


SCENARIO = ShippedPath("scenario", scenarios())
TRACE = ShippedPath("trace", {"sample": SAMPLE_TRACE}, takes_folders=True)
