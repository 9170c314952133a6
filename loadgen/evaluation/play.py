"""Plays one cell. Its figures may depend on all that this module imports, however far: `cache` goes by that."""

from __future__ import annotations

from loadgen.evaluation.experiments import Cell
from loadgen.figures import Figures
from loadgen.simulator.results import figures_of
from loadgen.simulator.world import World

_LEFT_OUT = ("placements", "series")
"""Of a run's figures: large, and no page shows them."""


def play(cell: Cell) -> Figures:
    """Raises ConfigError."""
    scenario = cell.scenario()
    figures = figures_of(scenario, World(scenario, scenario.runs[0]).play())
    return {key: value for key, value in figures.items() if key not in _LEFT_OUT}
