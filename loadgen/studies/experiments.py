"""Describes experiments as data: scenarios with changes, runs, and seeds; their product is the cells to be played.

It plays nothing and draws nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from loadgen.simulator.scenario import Scenario, check_playable, parse_scenario, set_key
from mesh.yaml_file import read_yaml

SCENARIOS = Path(__file__).parent.parent / "scenarios"

Changes = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Point:
    """One changed scenario of an experiment: one row of a table, or one place on an axis."""

    name: str
    scenario: str
    """A file among those that ship."""
    changes: Changes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Experiment:
    """Every run at every point, with every seed."""

    name: str
    points: tuple[Point, ...]
    runs: tuple[Changes, ...]
    """Runs as in a scenario, each with a name."""
    seeds: tuple[int, ...]

    @property
    def run_names(self) -> list[str]:
        return [str(run["name"]) for run in self.runs]

    def cells(self) -> Iterator[Cell]:
        for point in self.points:
            for run in self.runs:
                for seed in self.seeds:
                    yield Cell(self.name, point, run, seed)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of one scenario with one seed: a job for one process."""

    experiment: str
    point: Point
    run: Changes
    seed: int

    @property
    def run_name(self) -> str:
        return str(self.run["name"])

    @property
    def title(self) -> str:
        return f"{self.experiment}: {self.point.name}, {self.run_name}, seed {self.seed}"

    @property
    def path(self) -> Path:
        return SCENARIOS / self.point.scenario

    def document(self) -> dict[str, Any]:
        """Scenario document of the cell; a fresh copy each time."""
        document = deepcopy(_document_in(self.path))
        for key, value in {**self.point.changes, "seed": self.seed, "runs": [dict(self.run)]}.items():
            set_key(document, key, deepcopy(value))
        return document

    def scenario(self) -> Scenario:
        """Scenario of the cell. Raises ConfigError."""
        scenario = parse_scenario(self.document(), self.path)
        check_playable(scenario)
        return scenario


@cache
def _document_in(path: Path) -> dict[str, Any]:
    """Scenario document, cached because parsing YAML takes longer than all other steps."""
    return dict(read_yaml(path).mapping())


def all_cells(experiments: Sequence[Experiment]) -> list[Cell]:
    return [cell for experiment in experiments for cell in experiment.cells()]
