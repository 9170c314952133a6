"""Plays one cell. Its figures may depend on all modules that this one imports, directly or not: `cache` hashes them."""

from __future__ import annotations

from loadgen.figures import Figures
from loadgen.simulator.results import figures_of
from loadgen.simulator.world import World
from loadgen.studies.experiments import Cell

_LEFT_OUT = ("placements", "series")
"""Keys of a run's figures that are large and shown on no page."""


def play(cell: Cell) -> Figures:
    """Figures of the cell. Raises ConfigError."""
    scenario = cell.scenario()
    figures = figures_of(scenario, World(scenario, scenario.runs[0]).play())
    return {key: value for key, value in figures.items() if key not in _LEFT_OUT}
