"""Cells played for the token-budget page, by the section that shows them, and what plays each. It plays nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec import to_builtins

from loadgen.figures import Figures
from loadgen.planner.fleet import SeatCounting
from loadgen.studies.cells import Cell
from loadgen.studies.token_budget import days, sizing, tuning
from loadgen.studies.token_budget.paper import AZURE, LOADS
from loadgen.studies.token_budget.workloads import WORKLOADS

MOMENTS = ("transient", "steady")
LOADS_TUNED = ("azure_conv", "reasoning", "mooncake")
CHOSEN_ON = AZURE.name
"""Load on which the settings of the self-tuning threshold were chosen; it is shown apart."""


@dataclass(frozen=True, slots=True)
class BudgetCell:
    """All inputs of a cell's figures except the code and the load's files."""

    kind: str
    """`sized`, `latency`, `tuned` or `day`."""
    load: str
    design: str = ""
    condition: str = ""
    threshold: int = 0
    """Threshold in tokens; 0 for one that tunes itself."""
    seed: int = 0
    quick: bool = False

    def cell(self, traces: Path | None) -> Cell:
        """Cell for the engine."""
        return Cell(self, f"{self}", self._work(traces), to_builtins(self), self._files(traces))

    def _work(self, traces: Path | None) -> partial[Figures]:
        match self.kind:
            case "sized":
                return partial(sizing.sized, self.load, traces, quick=self.quick)
            case "latency":
                is_steady = self.condition == "steady"
                return partial(sizing.latency, self.load, self.design, is_steady=is_steady, quick=self.quick)
            case "tuned":
                tuned = tuning.TuningCell(self.load, self.condition, self.threshold, self.seed, self.quick)
                return partial(tuning.play, tuned, traces)
            case _:
                return partial(days.play, self.load, self.design, self.condition, traces, quick=self.quick)

    def _files(self, traces: Path | None) -> tuple[Path, ...]:
        """Files that it reads; the paper's loads are synthetic and read none."""
        if self.kind == "day":
            return () if traces is None or not (traces / days.CURVE).exists() else (traces / days.CURVE,)
        return tuple((WORKLOADS[self.load].files(traces) or ()) if self.load in WORKLOADS else ())


def sized(present: Sequence[str], *, quick: bool = False) -> list[BudgetCell]:
    return [BudgetCell("sized", load, quick=quick) for load in (*(each.name for each in LOADS), *present)]


def latencies(*, quick: bool = False) -> list[BudgetCell]:
    return [
        BudgetCell("latency", AZURE.name, design, moment, quick=quick)
        for design in ("homogeneous", "split")
        for moment in MOMENTS
    ]


def tuned(present: Sequence[str], *, quick: bool = False) -> list[BudgetCell]:
    loads = [load for load in LOADS_TUNED if load in present]
    seeds = tuning.SEEDS[:1] if quick else tuning.SEEDS
    return [
        BudgetCell("tuned", load, condition=condition, threshold=threshold, seed=seed, quick=quick)
        for load in (CHOSEN_ON, *loads)
        for condition in tuning.CONDITIONS
        for threshold in (*tuning.GRID, 0)
        for seed in seeds
    ]


def whole_days(*, quick: bool = False) -> list[BudgetCell]:
    return [
        BudgetCell("day", str(seats), design, routing, quick=quick)
        for seats in SeatCounting
        for design in days.DESIGNS
        for routing in days.ROUTINGS
    ]


def cells(present: Sequence[str], *, quick: bool = False) -> list[BudgetCell]:
    return [
        *sized(present, quick=quick),
        *latencies(quick=quick),
        *tuned(present, quick=quick),
        *whole_days(quick=quick),
    ]
