"""Describes experiments as data: scenarios with changes, runs, and seeds; their product is the cells to be played in
the simulator. It draws nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from loadgen.figures import Figures
from loadgen.simulator.results import figures_of
from loadgen.simulator.scenario import Scenario, check_playable, parse_scenario, set_key
from loadgen.simulator.world import World
from loadgen.studies.cells import Cell, Results
from mesh.yaml_file import read_yaml

SCENARIOS = Path(__file__).parent.parent / "scenarios"
_KEYS_OF_FILES = frozenset({"file", "rates", "questions", "round_trips"})
"""Keys of file names, at any place in a scenario."""
_LEFT_OUT = ("placements", "series")
"""Keys of a run's figures that are large and shown on no page."""

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

    def cells(self) -> Iterator[ScenarioCell]:
        for point in self.points:
            for run in self.runs:
                for seed in self.seeds:
                    yield ScenarioCell(self.name, point, run, seed)


@dataclass(frozen=True, slots=True)
class ScenarioCell:
    """One run of one scenario with one seed."""

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
        document: dict[str, Any] = _copied(_document_in(self.path))
        for key, value in {**self.point.changes, "seed": self.seed, "runs": [dict(self.run)]}.items():
            set_key(document, key, _copied(value))
        return document

    def scenario(self) -> Scenario:
        """Scenario of the cell. Raises ConfigError."""
        scenario = parse_scenario(self.document(), self.path)
        check_playable(scenario)
        return scenario

    def cell(self) -> Cell:
        """Cell for the engine. Names count for nothing in its inputs, files by what they hold."""
        files: list[Path] = []
        inputs = _without_files({**self.document(), "name": "", "about": ""}, self.path.parent, files)
        place = self.experiment, self.point.name, self.run_name, self.seed
        return Cell(place, self.title, partial(play, self), inputs, (*files, self.path))


def play(cell: ScenarioCell) -> Figures:
    """Figures of the cell. Raises ConfigError."""
    scenario = cell.scenario()
    figures = figures_of(scenario, World(scenario, scenario.runs[0]).play())
    return {key: value for key, value in figures.items() if key not in _LEFT_OUT}


def _without_files(part: object, folder: Path, files: list[Path]) -> object:
    """The document with the positions of its files, which are added to `files`, in place of their names."""
    if isinstance(part, Mapping):
        found = {}
        for key, value in part.items():
            is_file = key in _KEYS_OF_FILES and isinstance(value, str)
            found[key] = len(files) if is_file else _without_files(value, folder, files)
            if is_file:
                files.append(folder / value)
        return found
    return [_without_files(each, folder, files) for each in part] if isinstance(part, list | tuple) else part


def runs_of(results: Results, experiment: Experiment, point: str, run: str) -> list[Figures]:
    """Figures of each seed, in order; empty for a cell that failed."""
    return [results.figures.get((experiment.name, point, run, seed), {}) for seed in experiment.seeds]


@cache
def _document_in(path: Path) -> dict[str, Any]:
    """Scenario document, cached because parsing YAML takes longer than all other steps."""
    return dict(read_yaml(path).mapping())


def _copied(part: Any) -> Any:
    """Copy of the mappings and lists of a document; `deepcopy` takes several times as long for thousands of cells."""
    if isinstance(part, Mapping):
        return {key: _copied(value) for key, value in part.items()}
    return [_copied(each) for each in part] if isinstance(part, list) else part


def all_cells(experiments: Sequence[Experiment]) -> list[ScenarioCell]:
    return [cell for experiment in experiments for cell in experiment.cells()]
