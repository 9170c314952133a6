"""Plots and tables over loads: behaviour under rising load, and recovery from a spike. Its text states figures only."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10

from loadgen.figures import Figures
from loadgen.pages.drawing import Line, lines
from loadgen.pages.markdown import NOTHING, table
from loadgen.pages.templates import picture_file
from loadgen.studies import numbers as of
from loadgen.studies.numbers import Measure, ratio, seconds_of, spread_times, times
from loadgen.studies.placement.judgement import RunsOf, all_goodputs, bends, curve
from loadgen.studies.placement.plan import Series, Spike
from loadgen.studies.placement.systems import BASELINES, OURS


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


def loads(series: Series, runs_of: RunsOf) -> str:
    head = (series.axis, *(cell for name in series.experiment.run_names for cell in (f"{name}: /s", "TTFT", "p90")))
    rows = []
    for load, point in zip(series.loads, series.experiment.points, strict=True):
        cells = []
        for name in series.experiment.run_names:
            runs = runs_of(series.experiment, point.name, name)
            cells += [_plain(runs, of.THROUGHPUT), seconds_of(of.measured(runs, of.TTFT_MEAN))]
            cells.append(seconds_of(of.measured(runs, of.TTFT_P90)))
        rows.append((f"{load:g}", *cells))
    return table(head, rows)


def _plain(runs: Sequence[Figures], measure: Measure) -> str:
    found = of.median_of(runs, measure)
    return NOTHING if found is None else f"{found:.{max(0, 2 - int(log10(max(found, 1))))}f}"


def goodputs(series: Sequence[Series], bound_s: float, runs_of: RunsOf) -> str:
    """Table of the most requests per second of each sweep that are served in time."""
    head = ("sweep", *series[0].experiment.run_names, "ours, of the best other")
    return table(head, [_goodput(each, bound_s, runs_of) for each in series])


def _goodput(series: Series, bound_s: float, runs_of: RunsOf) -> tuple[str, ...]:
    found = all_goodputs(series.experiment, bound_s, runs_of)
    best = max((found[name] or 0.0 for name in found if name in BASELINES), default=0.0)
    ours = found.get(OURS)
    share = NOTHING if not best or ours is None else f"× {ours / best:.2f}"
    return series.title, *(NOTHING if each is None else f"{each:.2f}" for each in found.values()), share


def spike_table(several: Sequence[Spike], runs_of: RunsOf) -> str:
    """Table of the time after a spike, beside the same time without one."""
    rows = []
    for spike in several:
        calm, spiked = (point.name for point in spike.experiment.points)
        for name in spike.experiment.run_names:
            before, after = (runs_of(spike.experiment, point, name) for point in (calm, spiked))
            rows.append(
                (
                    spike.title,
                    name,
                    _plain(before, of.THROUGHPUT),
                    spread_times(ratio(after, before, of.THROUGHPUT)),
                    times(ratio(after, before, of.TTFT_MEAN)),
                )
            )
    head = ("workload", "system", "requests/s without it", "after it", "mean TTFT after it")
    return table(head, rows)
