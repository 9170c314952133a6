"""The report's plots as SVG inside a page: boxes on a log scale, and lines over time. Colours are the page's.

It draws what it is given; every plot says in words what it shows, for those who do not see it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean

from loadgen.figures import Figures

COLOURS = 9
_DASHES = ("", "6 3", "2 3")
POINTS_MAX = 500
"""Of one line: more than a plot has pixels."""
_POINTS_OF_ALL_MAX = 60_000
_POINTS_MIN = 40

Span = tuple[float, float]


def colour(number: int) -> str:
    return f"var(--run{number % COLOURS})"


def key(names: Sequence[str]) -> str:
    """Which line is whose."""
    return "".join(
        f'<span class=key><svg viewBox="0 0 26 10" aria-hidden="true"><line x1="1" x2="25" y1="5" y2="5"{_pen(number)}'
        f' stroke-width="3"/></svg>{escape(name)}</span>'
        for number, name in enumerate(names)
    )


def _pen(number: int) -> str:
    """A colour, and a dash where colours begin again."""
    dash = _DASHES[number // COLOURS % len(_DASHES)]
    return f' stroke="{colour(number)}"' + (f' stroke-dasharray="{dash}"' if dash else "")


# Box plots

_WIDTH, _MARGIN, _ROW, _AXIS = 640.0, 14.0, 52.0, 46.0


def boxes(about: str, rows: Sequence[tuple[int, str, Figures]], unit: str, units_per_ms: float) -> str:
    """One box for each numbered and named distribution, over one log scale."""
    low = min(box["p10"] for _, _, box in rows)
    high = max(max(box["p90"], box["mean"]) for _, _, box in rows)
    place, (start, end) = _log_scale(low, high)
    bottom = _ROW * len(rows) + 8
    medians = "; ".join(f"{name}: median {box['p50'] * units_per_ms:.3g} {unit}" for _, name, box in rows)
    drawn = [
        *_log_ticks(place, start, end, bottom, units_per_ms),
        f'<text x="{_WIDTH - _MARGIN:g}" y="{bottom + 37:g}" text-anchor="end">{unit}, log scale</text>',
    ]
    for row, (number, name, box) in enumerate(rows):
        y = _ROW * row + 38
        words = ", ".join(f"{rank} {value * units_per_ms:.3f} {unit}" for rank, value in box.items())
        drawn.append(
            f"<g><title>{escape(name)}: {words}</title>"
            f'<text class=name x="{_MARGIN:g}" y="{y - 20:g}">{escape(name)}</text>'
            f"{_box({rank: place(value) for rank, value in box.items()}, y, colour(number))}</g>"
        )
    return _svg("boxes", _WIDTH, bottom + _AXIS, f"{about}. {medians}", drawn)


def _log_scale(low: float, high: float) -> tuple[Callable[[float], float], Span]:
    """From a 1, 2 or 5 to the next that holds all, so that equal values do not divide by zero."""
    steps = [step * 10.0**exponent for exponent in range(-3, 10) for step in (1, 2, 5)]
    start = max((step for step in steps if step <= low), default=steps[0])
    end = min((step for step in steps if step >= high and step > start), default=steps[-1])
    span = math.log10(end / start)

    def place(value: float) -> float:
        share = math.log10(min(max(value, start), end) / start) / span
        return _MARGIN + share * (_WIDTH - 2 * _MARGIN)

    return place, (start, end)


def _log_ticks(
    place: Callable[[float], float], start: float, end: float, bottom: float, units_per_ms: float
) -> list[str]:
    """The more decades share the width, the fewer."""
    steps: tuple[float, ...] = (1,) if end / start > 1000 else (1, 2, 5) if end / start > 5 else tuple(range(1, 10))
    decades = range(math.floor(math.log10(start)), math.ceil(math.log10(end)) + 1)
    values = [step * 10.0**exponent for exponent in decades for step in steps]
    return [
        f'<line class=grid x1="{place(value):.1f}" x2="{place(value):.1f}" y1="4" y2="{bottom:g}"/>'
        f'<text x="{place(value):.1f}" y="{bottom + 16:g}" text-anchor="middle">{value * units_per_ms:g}</text>'
        for value in values
        if start * 0.999 <= value <= end * 1.001
    ]


def _box(at: Mapping[str, float], y: float, ink: str) -> str:
    return (
        f'<line x1="{at["p10"]:.1f}" x2="{at["p90"]:.1f}" y1="{y:g}" y2="{y:g}" stroke="{ink}" stroke-width="1.5"/>'
        f'<rect x="{at["p25"]:.1f}" y="{y - 8:g}" width="{max(at["p75"] - at["p25"], 1):.1f}" height="16" rx="2"'
        f' fill="{ink}" fill-opacity=".25" stroke="{ink}"/>'
        f'<line x1="{at["p50"]:.1f}" x2="{at["p50"]:.1f}" y1="{y - 8:g}" y2="{y + 8:g}"'
        f' stroke="{ink}" stroke-width="3"/>'
        f'<path d="M{at["mean"] - 4:.1f} {y - 15:g}h8l-4 6z" fill="{ink}"/>'
    )


# Over time


@dataclass(frozen=True, slots=True)
class Scene:
    """What all plots over time have in common."""

    end_s: float
    warm_up_s: float
    faults_s: Sequence[Span]


@dataclass(frozen=True, slots=True)
class Line:
    """One run's values, in the order of their times."""

    name: str
    at_s: Sequence[float]
    values: Sequence[float]


def points_max(lines: int) -> int:
    """How many points each of so many lines may have, so that a page stays small."""
    return max(_POINTS_MIN, min(POINTS_MAX, _POINTS_OF_ALL_MAX // max(lines, 1)))


def thinned(line: Line, points: int, *, peaks: bool) -> Line:
    """At most so many points, each for an equal stretch of the line: its highest value, or its mean."""
    if len(line.at_s) <= points:
        return line
    size = math.ceil(len(line.at_s) / points)
    parts = [slice(start, start + size) for start in range(0, len(line.at_s), size)]
    of = max if peaks else fmean
    return Line(line.name, [fmean(line.at_s[part]) for part in parts], [of(line.values[part]) for part in parts])


_PLOT_WIDTH, _PLOT_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 340.0, 132.0, 40.0, 6.0, 8.0, 106.0


def over_time(about: str, lines: Sequence[Line], top: float, scene: Scene) -> str:
    """Lines that share a scale from zero to `top`, over what went wrong meanwhile."""
    scale = ticks_to(top)

    def across(at_s: float) -> float:
        return _LEFT + min(at_s / scene.end_s, 1) * (_PLOT_WIDTH - _LEFT - _RIGHT)

    def up(value: float) -> float:
        return _BOTTOM - value / scale[-1] * (_BOTTOM - _TOP)

    bands = [_band("fault", span, across) for span in scene.faults_s]
    bands += [_band("warm", (0, scene.warm_up_s), across)] if scene.warm_up_s else []
    axes = [_level(value, up(value)) for value in scale]
    axes += [_moment(share * scene.end_s, scene.end_s, across) for share in (0.0, 0.5, 1.0)]
    drawn = [_polyline(line, _pen(number), across, up) for number, line in enumerate(lines)]
    highest = "; ".join(f"{line.name} at most {max(line.values, default=0):.3g}" for line in lines)
    return _svg("series", _PLOT_WIDTH, _PLOT_HEIGHT, f"{about}: {highest}", [*bands, *axes, *drawn])


def _polyline(line: Line, pen: str, across: Callable[[float], float], up: Callable[[float], float]) -> str:
    points = " ".join(f"{across(at):.1f},{up(value):.1f}" for at, value in zip(line.at_s, line.values, strict=True))
    return f'<polyline points="{points}" fill="none"{pen} stroke-width="1.6"/>'


def _level(value: float, y: float) -> str:
    return (
        f'<line class=grid x1="{_LEFT:g}" x2="{_PLOT_WIDTH - _RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{_LEFT - 5:g}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
    )


def _moment(at_s: float, end_s: float, across: Callable[[float], float]) -> str:
    anchor = "start" if at_s == 0 else "end" if at_s == end_s else "middle"
    return f'<text x="{across(at_s):.1f}" y="{_BOTTOM + 17:g}" text-anchor="{anchor}">{clock(at_s, end_s)}</text>'


def _band(kind: str, span: Span, across: Callable[[float], float]) -> str:
    start, end = map(across, span)
    return (
        f'<rect class={kind} x="{start:.1f}" y="{_TOP:g}" width="{max(end - start, 0.8):.1f}"'
        f' height="{_BOTTOM - _TOP:g}"/>'
    )


def ticks_to(top: float) -> list[float]:
    """From zero, in round steps, to the first that holds `top`: at most six of them."""
    if top <= 0:
        return [0.0, 1.0]
    step = 10.0 ** math.floor(math.log10(top))
    step = next(step * part for part in (0.2, 0.25, 0.5, 1, 2) if top <= 4 * step * part * (1 + 1e-9) or part == 2)
    count = max(1, math.ceil(top / step - 1e-9))
    return [round(number * step, 10) for number in range(count + 1)]


def clock(at_s: float, end_s: float) -> str:
    """In seconds; in minutes or hours where a run lasts so long."""
    if end_s < 600:
        return f"{at_s:g} s"
    return f"{at_s / 60:.3g} min" if end_s < 7200 else f"{at_s / 3600:.3g} h"


def _svg(kind: str, width: float, height: float, about: str, drawn: Sequence[str]) -> str:
    return (
        f'<svg class={kind} viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(about)}">'
        f"{''.join(drawn)}</svg>"
    )
