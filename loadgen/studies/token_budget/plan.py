"""Cells played for the token-budget page, by the section that shows them. It plays nothing."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.planner.fleet import Seats
from loadgen.studies.token_budget import days, tuning
from loadgen.studies.token_budget.cells import Cell
from loadgen.studies.token_budget.paper import AZURE, LOADS

MOMENTS = ("transient", "steady")
LOADS_TUNED = ("azure_conv", "reasoning", "mooncake")
CHOSEN_ON = AZURE.name
"""Load on which the settings of the self-tuning threshold were chosen; it is shown apart."""


def sized(present: Sequence[str], *, quick: bool = False) -> list[Cell]:
    return [Cell("sized", load, quick=quick) for load in (*(each.name for each in LOADS), *present)]


def latencies(*, quick: bool = False) -> list[Cell]:
    return [
        Cell("latency", AZURE.name, design, moment, quick=quick)
        for design in ("homogeneous", "split")
        for moment in MOMENTS
    ]


def tuned(present: Sequence[str], *, quick: bool = False) -> list[Cell]:
    loads = [load for load in LOADS_TUNED if load in present]
    seeds = tuning.SEEDS[:1] if quick else tuning.SEEDS
    return [
        Cell("tuned", load, condition=condition, threshold=threshold, seed=seed, quick=quick)
        for load in (CHOSEN_ON, *loads)
        for condition in tuning.CONDITIONS
        for threshold in (*tuning.GRID, 0)
        for seed in seeds
    ]


def whole_days(*, quick: bool = False) -> list[Cell]:
    return [
        Cell("day", str(seats), design, routing, quick=quick)
        for seats in Seats
        for design in days.DESIGNS
        for routing in days.ROUTINGS
    ]


def cells(present: Sequence[str], *, quick: bool = False) -> list[Cell]:
    return [
        *sized(present, quick=quick),
        *latencies(quick=quick),
        *tuned(present, quick=quick),
        *whole_days(quick=quick),
    ]
