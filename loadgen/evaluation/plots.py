"""Plots as SVG files that follow the reader's light or dark scheme: boxes on a log scale, bars, and lines.

It draws what it is given, and decides only where it goes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

_STYLE = """
svg { --ink: #1b1f24; --soft: #5c6773; --faint: #d8dee4; --paper: #ffffff; --c0: #2f6fde; --c1: #d1672b; --c2: #2d8f6f;
 --c3: #9a4fc4; --c4: #b08a00; --c5: #c43d6b; --c6: #4c8fa8; --c7: #7a7f45; --c8: #8c6d5a; background: var(--paper); }
@media (prefers-color-scheme: dark) { svg { --ink: #e6edf3; --soft: #9aa7b4; --faint: #30363d; --paper: #0d1117;
 --c0: #6ea8ff; --c1: #f2955c; --c2: #5cc9a3; --c3: #c78bf0; --c4: #e0b93a; --c5: #f0789f; --c6: #7cc4de; --c7: #b9bf7c;
 --c8: #c7a590; } }
text { font: 11px system-ui, sans-serif; fill: var(--soft); } .name { fill: var(--ink); font-size: 12px; }
.title { fill: var(--ink); font-size: 13px; font-weight: 600; } .grid { stroke: var(--faint); }
"""
_COLOURS = 9
_ROW = 26.0
_NAME_WIDTH = 150.0
_PANEL = 390.0
_GAP = 24.0
_TOP = 30.0

Box = Mapping[str, float]
"""p10, p25, p50, p75, p90 and mean, in milliseconds."""


@dataclass(frozen=True, slots=True)
class Line:
    """One curve."""

    name: str
    points: Sequence[tuple[float, float]]


def boxes(titles: Sequence[str], rows: Sequence[tuple[str, Sequence[Box | None]]], about: str) -> str:
    """One panel for each title, one row for each name; seconds on a log scale."""
    height = _TOP + _ROW * len(rows) + 34
    width = _NAME_WIDTH + len(titles) * (_PANEL + _GAP)
    drawn = [
        f'<text class="name" x="8" y="{_TOP + _ROW * (row + 0.5) + 4:g}">{escape(name)}</text>'
        for row, (name, _) in enumerate(rows)
    ]
    for panel, title in enumerate(titles):
        left = _NAME_WIDTH + panel * (_PANEL + _GAP)
        drawn.append(f'<text class="title" x="{left:g}" y="18">{escape(title)}</text>')
        drawn += _box_panel([(name, each[panel]) for name, each in rows], left, height - 30)
    return _whole(width, height, drawn, about)


def _box_panel(rows: Sequence[tuple[str, Box | None]], left: float, bottom: float) -> list[str]:
    present = [box for _, box in rows if box]
    if not present:
        return []
    low = min(box["p10"] for box in present)
    high = max(max(box["p90"], box["mean"]) for box in present)
    place, (start, end) = _log_scale(low, high, left, left + _PANEL)
    drawn = _log_ticks(place, start, end, bottom)
    for row, (name, box) in enumerate(rows):
        if box:
            drawn.append(_box(name, box, place, _TOP + _ROW * (row + 0.5), _colour(row)))
    return drawn


def _box(name: str, box: Box, place: Callable[[float], float], y: float, colour: str) -> str:
    at = {key: place(value) for key, value in box.items()}
    title = ", ".join(f"{key} {value / 1000:.3f} s" for key, value in box.items())
    return (
        f"<g><title>{escape(name)}: {title}</title>"
        f'<line x1="{at["p10"]:.1f}" x2="{at["p90"]:.1f}" y1="{y:g}" y2="{y:g}" stroke="{colour}" stroke-width="1.5"/>'
        f'<rect x="{at["p25"]:.1f}" y="{y - 7:g}" width="{max(at["p75"] - at["p25"], 1):.1f}" height="14" rx="2"'
        f' fill="{colour}" fill-opacity=".3" stroke="{colour}"/>'
        f'<line x1="{at["p50"]:.1f}" x2="{at["p50"]:.1f}" y1="{y - 7:g}" y2="{y + 7:g}" stroke="{colour}"'
        f' stroke-width="3"/><path d="M{at["mean"] - 4:.1f} {y - 12:g}h8l-4 6z" fill="{colour}"/></g>'
    )


def bars(titles: Sequence[str], rows: Sequence[tuple[str, Sequence[float | None]]], about: str, logs: int = 0) -> str:
    """One panel for each title; the last `logs` of them on a log scale."""
    height = _TOP + _ROW * len(rows) + 34
    width = _NAME_WIDTH + 140 + len(titles) * (_PANEL + _GAP)
    drawn = [
        f'<text class="name" x="8" y="{_TOP + _ROW * (row + 0.5) + 4:g}">{escape(name)}</text>'
        for row, (name, _) in enumerate(rows)
    ]
    for panel, title in enumerate(titles):
        left = _NAME_WIDTH + 140 + panel * (_PANEL + _GAP)
        drawn.append(f'<text class="title" x="{left:g}" y="18">{escape(title)}</text>')
        is_log = panel >= len(titles) - logs
        drawn += _bar_panel([each[panel] for _, each in rows], left, height - 30, is_log=is_log)
    return _whole(width, height, drawn, about)


def _bar_panel(values: Sequence[float | None], left: float, bottom: float, *, is_log: bool) -> list[str]:
    present = [value for value in values if value is not None]
    if not present:
        return []
    right = left + _PANEL - 44
    if is_log:
        place, (start, end) = _log_scale(1000 * min(present), 1000 * max(present), left, right)
        drawn = _log_ticks(place, start, end, bottom)
        positions = [None if value is None else place(1000 * value) for value in values]
    else:
        linear, ticks = _linear_scale(max(present), left, right)
        drawn = _linear_ticks(linear, ticks, bottom)
        positions = [None if value is None else linear(value) for value in values]
    for row, (value, x) in enumerate(zip(values, positions, strict=True)):
        if value is None or x is None:
            continue
        y = _TOP + _ROW * (row + 0.5)
        drawn.append(
            f'<rect x="{left:g}" y="{y - 8:g}" width="{max(x - left, 1):.1f}" height="16" rx="2"'
            f' fill="{_colour(0)}" fill-opacity=".75"/><text x="{x + 5:.1f}" y="{y + 4:g}">{value:.3g}</text>'
        )
    return drawn


def lines(title: str, curves: Sequence[Line], x_name: str, y_name: str, about: str) -> str:
    """Curves over one scale that begins at zero; only the title where there are none."""
    left, top, right, bottom = 56.0, 44.0, 700.0, 300.0
    points = [point for curve in curves for point in curve.points]
    if not points:
        return _whole(right + 20, top, [f'<text class="title" x="8" y="18">{escape(title)}</text>'], about)
    start, end = min(x for x, _ in points), max(x for x, _ in points)
    across = _between(start, end, left, right)
    up, ticks = _linear_scale(max(y for _, y in points), bottom, top)
    drawn = [f'<text class="title" x="8" y="18">{escape(title)}</text>']
    for tick in ticks:
        drawn.append(f'<line class="grid" x1="{left:g}" x2="{right:g}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"/>')
        drawn.append(f'<text x="{left - 6:g}" y="{up(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    marked = sorted({x for x, _ in points})
    drawn += [f'<text x="{across(x):.1f}" y="{bottom + 16:g}" text-anchor="middle">{x:g}</text>' for x in marked]
    drawn.append(f'<text x="{right:g}" y="{bottom + 32:g}" text-anchor="end">{escape(x_name)}</text>')
    drawn.append(f'<text x="8" y="36">{escape(y_name)}</text>')
    for number, curve in enumerate(curves):
        drawn += _curve(curve, across, up, _colour(number))
        drawn += _key(curve.name, number, left, bottom + 32)
    return _whole(right + 20, bottom + 44, drawn, about)


def _curve(curve: Line, across: Callable[[float], float], up: Callable[[float], float], colour: str) -> list[str]:
    places = [(across(x), up(y)) for x, y in curve.points]
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour}"/>' for x, y in places]
    return [f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="1.8"/>', *dots]


def _key(name: str, number: int, left: float, y: float) -> list[str]:
    x = left + 150 * number
    return [
        f'<rect x="{x:g}" y="{y - 9:g}" width="10" height="10" rx="2" fill="{_colour(number)}"/>',
        f'<text class="name" x="{x + 15:g}" y="{y:g}">{escape(name)}</text>',
    ]


def _between(start: float, end: float, left: float, right: float) -> Callable[[float], float]:
    span = (end - start) or 1.0
    return lambda value: left + (value - start) / span * (right - left)


def _linear_scale(high: float, left: float, right: float) -> tuple[Callable[[float], float], list[float]]:
    """From zero to a round number."""
    step = 10.0 ** math.floor(math.log10(max(high, 1e-9)))
    step = next(step * part for part in (0.2, 0.5, 1, 2) if high / (step * part) <= 6)
    count = math.ceil(high / step - 1e-9)
    return _between(0, count * step, left, right), [number * step for number in range(count + 1)]


def _linear_ticks(place: Callable[[float], float], ticks: Sequence[float], bottom: float) -> list[str]:
    return [_tick(place(value), f"{value:g}", bottom) for value in ticks]


def _log_scale(
    low: float, high: float, left: float, right: float
) -> tuple[Callable[[float], float], tuple[float, float]]:
    """Over whole halves of decades, so that equal values do not divide by zero."""
    start = math.floor(2 * math.log10(max(low, 1e-3))) / 2
    end = max(math.ceil(2 * math.log10(max(high, 1e-3)) + 1e-9) / 2, start + 0.5)
    across = _between(start, end, left, right)
    return lambda value: across(min(end, max(start, math.log10(max(value, 1e-3))))), (start, end)


def _log_ticks(place: Callable[[float], float], start: float, end: float, bottom: float) -> list[str]:
    """Fewer where many decades share the width."""
    steps = (1, 2, 5) if end - start <= 2.5 else (1,)
    values = [step * 10.0**exponent for exponent in range(math.floor(start), math.ceil(end) + 1) for step in steps]
    return [
        _tick(place(value), f"{value / 1000:g}", bottom)
        for value in values
        if start - 1e-9 <= math.log10(value) <= end + 1e-9
    ]


def _tick(x: float, words: str, bottom: float) -> str:
    return (
        f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 4:g}" y2="{bottom:g}"/>'
        f'<text x="{x:.1f}" y="{bottom + 16:g}" text-anchor="middle">{words}</text>'
    )


def _colour(number: int) -> str:
    return f"var(--c{number % _COLOURS})"


def _whole(width: float, height: float, drawn: Sequence[str], about: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
        f' height="{height:g}" role="img" aria-label="{escape(about)}"><style>{_STYLE}</style>'
        f"{''.join(drawn)}</svg>\n"
    )
