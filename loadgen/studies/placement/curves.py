"""Plots over loads, and the words on a curve that bends down. Its text states figures only."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10

from loadgen.figures import Figures
from loadgen.pages.drawing import Line, lines
from loadgen.pages.markdown import NOTHING
from loadgen.pages.templates import picture_file
from loadgen.studies import numbers as of
from loadgen.studies.numbers import Measure
from loadgen.studies.placement.judgement import RunsOf, bends, curve
from loadgen.studies.placement.plan import Series
from loadgen.studies.placement.systems import OURS


def sweep_plots(sweeps: Sequence[Series], runs_of: RunsOf) -> dict[str, str]:
    """Two plots of each sweep, by file name."""
    return {
        f"placement-sweep-{number}-{kind}.svg": _plot(each, y_name, measure, runs_of)
        for number, each in enumerate(sweeps)
        for kind, y_name, measure in (("rate", "requests/s", of.THROUGHPUT), ("ttft", "mean TTFT, s", of.TTFT_MEAN))
    }


def bent(series: Series, runs_of: RunsOf) -> str:
    found = {
        name: bends(curve(series.experiment, name, of.THROUGHPUT, runs_of)) for name in series.experiment.run_names
    }
    bent = [f"{name} to × {depth:.2f}" for name, depth in found.items() if depth is not None]
    ours = "ours falls" if found.get(OURS) is not None else "ours does not fall"
    return f"{series.title}: {ours}" + (f"; fallen: {', '.join(bent)}" if bent else "")


def _plot(series: Series, y_name: str, measure: Measure, runs_of: RunsOf) -> str:
    drawn = []
    for name in series.experiment.run_names:
        values = curve(series.experiment, name, measure, runs_of)
        points = [(load, value) for load, value in zip(series.loads, values, strict=True) if value is not None]
        drawn.append(Line(name, points))
    return picture_file(lines(series.title, drawn, series.axis, y_name))


def plain(runs: Sequence[Figures]) -> str:
    """Median throughput, with three significant digits."""
    found = of.median_of(runs, of.THROUGHPUT)
    return NOTHING if found is None else f"{found:.{max(0, 2 - int(log10(max(found, 1))))}f}"
