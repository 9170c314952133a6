"""Draws the pictures of all pages as SVG: rows of boxes and bars, and lines; on log scales, or on scales from zero.

It draws what it is given, in the colours of `drawing.css`, and decides only positions. Every picture describes its
contents in words, for screen readers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup

COLOURS = 9
_DASHES = ("", "6 3", "2 3")
POINTS_MAX = 500
"""Maximum number of points of one line, more than a plot has pixels."""
_POINTS_OF_ALL_MAX = 60_000
_POINTS_MIN = 40

Span = tuple[float, float]
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Picture:
    """SVG elements of a picture and their description; the description is empty where adjacent text says the same."""

    width: float
    height: float
    about: str
    marks: Markup


def sample(number: int) -> Picture:
    """Short piece of one line, for the key of several plots."""
    return Picture(26, 10, "", _line(1, 5, 25, 5, stroke_width=3, **_pen(number)))


def _mark(tag: str, inside: str | None = None, /, **attributes: object) -> Markup:
    """One element, with all its contents escaped. Numbers have one decimal, in pixels; `stroke_width` becomes
    `stroke-width`."""
    written = Markup("").join(
        Markup(' {}="{}"').format(name.strip("_").replace("_", "-"), _written(value))
        for name, value in attributes.items()
    )
    if inside is None:
        return Markup("<{}{}/>").format(tag, written)
    return Markup("<{0}{1}>{2}</{0}>").format(tag, written, inside)


def _written(value: object) -> object:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value


def _line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> Markup:
    return _mark("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def _text(x: float, y: float, words: str, anchor: str = "start", **attributes: object) -> Markup:
    return _mark("text", words, x=x, y=y, text_anchor=anchor, **attributes)


def _colour(number: int) -> str:
    return f"var(--c{number % COLOURS})"


def _pen(number: int) -> dict[str, str]:
    """Colour, and a dash once the colours repeat."""
    dash = _DASHES[number // COLOURS % len(_DASHES)]
    return {"stroke": _colour(number)} | ({"stroke_dasharray": dash} if dash else {})


# Scales


@dataclass(frozen=True, slots=True)
class Scale:
    """Start of an axis, the position of each value on it, and its ticks."""

    start: float
    place: Callable[[float], float]
    ticks: Sequence[float]


def from_zero(high: float, start: float, end: float) -> Scale:
    ticks = ticks_to(high)
    return Scale(start, lambda value: start + value / ticks[-1] * (end - start), ticks)


def ticks_to(top: float) -> list[float]:
    """Ticks from zero, in round steps, to the first that is at least `top`: at most six."""
    if top <= 0:
        return [0.0, 1.0]
    step = 10.0 ** math.floor(math.log10(top))
    step = next(step * part for part in (0.2, 0.25, 0.5, 1, 2) if top <= 4 * step * part * (1 + 1e-9) or part == 2)
    count = max(1, math.ceil(top / step - 1e-9))
    return [round(number * step, 10) for number in range(count + 1)]


def logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    """Logarithmic scale from a 1, 2 or 5 to a later 1, 2 or 5 that encloses all values, so that equal values do not
    divide by zero."""
    steps = [step * 10.0**exponent for exponent in range(-6, 10) for step in (1, 2, 5)]
    first = max((step for step in steps if step <= low), default=steps[0])
    last = min((step for step in steps if step >= high and step > first), default=steps[-1])
    span = math.log10(last / first)

    def place(value: float) -> float:
        return start + math.log10(min(max(value, first), last) / first) / span * (end - start)

    return Scale(start, place, _log_ticks(first, last))


def _log_ticks(first: float, last: float) -> list[float]:
    """Ticks of a log scale, sparser with more decades."""
    steps: tuple[float, ...] = (1,) if last / first > 1000 else (1, 2, 5) if last / first > 5 else tuple(range(1, 10))
    decades = range(math.floor(math.log10(first)), math.ceil(math.log10(last)) + 1)
    values = [step * 10.0**exponent for exponent in decades for step in steps]
    return [value for value in values if first * 0.999 <= value <= last * 1.001]


# Rows of boxes and bars

Box = Mapping[str, float]
"""p10, p25, p50, p75, p90 and mean, in the panel's unit."""
_HALF = 8.0
"""Half of a box's or a bar's height."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """Box from 25 to 75 %, whiskers at 10 and 90 %, a line at the median, and a triangle at the mean; on a log
    scale."""

    title: str
    unit: str
    rows: Sequence[Box | None]

    @property
    def axis(self) -> str:
        return f"{self.unit}, log scale"

    def scale(self, left: float, right: float) -> Scale | None:
        """Scale of the panel; None where every row is empty. The same in every kind of panel."""
        present = [box for box in self.rows if box]
        if not present:
            return None
        high = max(max(box["p90"], box["mean"]) for box in present)
        return logarithmic(min(box["p10"] for box in present), high, left, right)

    def words(self, row: int) -> str:
        """Description of a row; empty for an empty row."""
        box = self.rows[row]
        return f"median {box['p50']:.3g} {self.unit}" if box else ""

    def mark(self, row: int, name: str, scale: Scale, y: float) -> Markup:
        box = self.rows[row]
        if not box:
            return Markup("")
        at, ink = {rank: scale.place(value) for rank, value in box.items()}, _colour(row)
        words = ", ".join(f"{rank} {value:.3f} {self.unit}" for rank, value in box.items())
        width = max(at["p75"] - at["p25"], 1.0)
        parts = (
            _mark("title", f"{name}: {words}"),
            _line(at["p10"], y, at["p90"], y, stroke=ink, stroke_width="1.5"),
            _mark("rect", x=at["p25"], y=y - _HALF, width=width, height=2 * _HALF, rx=2, fill=ink, fill_opacity=".27",
                  stroke=ink),
            _line(at["p50"], y - _HALF, at["p50"], y + _HALF, stroke=ink, stroke_width=3),
            _mark("path", d=f"M{at['mean'] - 4:.1f} {y - 15:g}h8l-4 6z", fill=ink),
        )  # fmt: skip
        return _mark("g", Markup("").join(parts))


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars as long as their values, with the numbers beside them."""

    title: str
    rows: Sequence[float | None]
    is_log: bool = False

    @property
    def axis(self) -> str:
        return "log scale" if self.is_log else ""

    def scale(self, left: float, right: float) -> Scale | None:
        present = [value for value in self.rows if value is not None]
        if not present:
            return None
        right -= 44.0  # room for the value beside the longest bar
        if self.is_log:
            return logarithmic(min(present) / 2, max(present), left, right)  # half, so that the shortest bar is visible
        return from_zero(max(present), left, right)

    def words(self, row: int) -> str:
        value = self.rows[row]
        return "" if value is None else f"{value:.3g}"

    def mark(self, row: int, name: str, scale: Scale, y: float) -> Markup:
        value = self.rows[row]
        if value is None:
            return Markup("")
        end = scale.place(value)
        parts = (
            _mark("title", f"{name}: {value:.3g}"),
            _mark("rect", x=scale.start, y=y - _HALF, width=max(end - scale.start, 1.0), height=2 * _HALF, rx=2,
                  fill=_colour(0), fill_opacity=".75"),
            _text(end + 5, y + 4, f"{value:.3g}"),
        )  # fmt: skip
        return _mark("g", Markup("").join(parts))


Panel = Boxes | Bars
"""One figure of every row, over one scale."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Layout of rows and of their names: left of the rows, or above them where the width is for one panel."""

    left: float
    panel: float
    top: float
    row: float
    name_x: float
    name_up: float
    """Distance of a name above the middle of its row."""


_GAP = 44.0
"""Gap between panels, with room for the labels at the end of one and the start of the next."""
_ABOVE = _Rows(left=14, panel=612, top=12, row=52, name_x=14, name_up=20)


def _before(names: Sequence[str]) -> _Rows:
    width = 26 + 6.8 * max(map(len, names), default=0)
    return _Rows(left=width, panel=390, top=30, row=26, name_x=8, name_up=-4)


def rows(about: str, names: Sequence[str], panels: Sequence[Panel], *, names_above: bool = False) -> Picture:
    """Picture with a row for each name, with its box or bar in every panel."""
    layout = _ABOVE if names_above else _before(names)
    middles = [layout.top + layout.row * (number + 0.5) for number in range(len(names))]
    bottom = layout.top + layout.row * len(names) + 4
    marks = [
        _text(layout.name_x, y - layout.name_up, name, class_="name") for name, y in zip(names, middles, strict=True)
    ]
    for number, panel in enumerate(panels):
        left = layout.left + number * (layout.panel + _GAP)
        marks += [] if names_above else [_text(left, 18, panel.title, class_="title")]
        marks += _panel(panel, names, middles, (left, left + layout.panel), (layout.top - 4, bottom))
    width = layout.left + len(panels) * layout.panel + (len(panels) - 1) * _GAP + 14
    said = ". ".join(filter(None, (_said(panel, names) for panel in panels)))
    return Picture(width, bottom + 46, f"{about}. {said}", Markup("").join(marks))


def _panel(panel: Panel, names: Sequence[str], middles: Sequence[float], across: Span, down: Span) -> list[Markup]:
    scale = panel.scale(*across)
    if scale is None:
        return []
    marks = [_text(across[1], down[1] + 37, panel.axis, "end")] if panel.axis else []
    for tick in scale.ticks:
        x = scale.place(tick)
        marks += [_line(x, down[0], x, down[1], class_="grid"), _text(x, down[1] + 16, f"{tick:g}", "middle")]
    return marks + [panel.mark(row, names[row], scale, y) for row, y in enumerate(middles)]


def _said(panel: Panel, names: Sequence[str]) -> str:
    said = [f"{name} {words}" for row, name in enumerate(names) if (words := panel.words(row))]
    return f"{panel.title}: {'; '.join(said)}" if said else ""


# Lines


@dataclass(frozen=True, slots=True)
class Line:
    """Named curve, its points from left to right."""

    name: str
    points: Sequence[Point]


def points_max(lines: int) -> int:
    """Maximum number of points per line, so that a page with this many lines stays small."""
    return max(_POINTS_MIN, min(POINTS_MAX, _POINTS_OF_ALL_MAX // max(lines, 1)))


def thinned(line: Line, points: int, *, peaks: bool) -> Line:
    """Line reduced to at most `points` points, each the maximum (`peaks`) or the mean of an equal stretch of the
    line."""
    if len(line.points) <= points:
        return line
    size = math.ceil(len(line.points) / points)
    parts = [line.points[start : start + size] for start in range(0, len(line.points), size)]
    of = max if peaks else fmean
    return Line(line.name, [(fmean(x for x, _ in part), of(y for _, y in part)) for part in parts])


def _curve(line: Line, number: int, across: Callable[[float], float], up: Callable[[float], float]) -> Markup:
    joined = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in line.points)
    return _mark("polyline", points=joined, fill="none", stroke_width="1.6", **_pen(number))


def _levels(scale: Scale, left: float, right: float) -> list[Markup]:
    marks = []
    for tick in scale.ticks:
        y = scale.place(tick)
        marks += [_line(left, y, right, y, class_="grid"), _text(left - 5, y + 4, f"{tick:g}", "end")]
    return marks


def lines(
    title: str, curves: Sequence[Line], x_name: str, y_name: str, x_words: Callable[[float], str] = "{:g}".format
) -> Picture:
    """Curves over a scale from zero, with a dot for each point; only the title where there are none. `x_words` labels
    the x axis."""
    left, top, right, bottom = 56.0, 44.0, 700.0, 300.0
    heading = _text(8, 18, title, class_="title")
    marked = sorted({x for curve in curves for x, _ in curve.points})
    if not marked:
        return Picture(right + 20, top, title, heading)
    span = (marked[-1] - marked[0]) or 1.0

    def across(x: float) -> float:
        return left + (x - marked[0]) / span * (right - left)

    up = from_zero(max(y for curve in curves for _, y in curve.points), bottom, top)
    marks = [heading, _text(8, 36, y_name), *_levels(up, left, right)]
    marks += [_text(across(x), bottom + 16, x_words(x), "middle") for x in marked]
    marks.append(_text(right, bottom + 32, x_name, "end"))
    key_x, key_y = left, bottom + 54
    for number, curve in enumerate(curves):
        width = 60 + 6.8 * len(curve.name)
        if key_x > left and key_x + width > right:
            key_x, key_y = left, key_y + 18
        marks.append(_curve(curve, number, across, up.place))
        marks += [_mark("circle", cx=across(x), cy=up.place(y), r="2.6", fill=_colour(number)) for x, y in curve.points]
        marks.append(_line(key_x, key_y - 4, key_x + 24, key_y - 4, stroke_width=3, **_pen(number)))
        marks.append(_text(key_x + 30, key_y, curve.name, class_="name"))
        key_x += width
    return Picture(right + 20, key_y + 12, f"{title}: {_highest(curves)}", Markup("").join(marks))


def _highest(curves: Sequence[Line]) -> str:
    return "; ".join(f"{each.name} at most {max((y for _, y in each.points), default=0):.3g}" for each in curves)


# Over time


@dataclass(frozen=True, slots=True)
class Scene:
    """Properties that all plots over time share."""

    end_s: float
    warm_up_s: float
    faults_s: Sequence[Span]


def over_time(about: str, curves: Sequence[Line], top: float, scene: Scene) -> Picture:
    """Small plot of lines that share a scale from zero to `top`, with the faults in the background."""
    left, right, ceiling, floor = 40.0, 334.0, 8.0, 106.0

    def across(at_s: float) -> float:
        return left + min(at_s / scene.end_s, 1) * (right - left)

    def band(kind: str, span: Span) -> Markup:
        start, end = map(across, span)
        return _mark("rect", class_=kind, x=start, y=ceiling, width=max(end - start, 0.8), height=floor - ceiling)

    up = from_zero(top, floor, ceiling)
    marks = [band("fault", span) for span in scene.faults_s]
    marks += [band("warm", (0, scene.warm_up_s))] if scene.warm_up_s else []
    marks += _levels(up, left, right)
    marks += [
        _text(across(share * scene.end_s), floor + 17, clock(share * scene.end_s, scene.end_s), anchor)
        for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end"))
    ]
    marks += [_curve(line, number, across, up.place) for number, line in enumerate(curves)]
    return Picture(340, 132, f"{about}: {_highest(curves)}", Markup("").join(marks))


def clock(at_s: float, end_s: float) -> str:
    """Time in seconds, or in minutes or hours for a long run."""
    if end_s < 600:
        return f"{at_s:g} s"
    return f"{at_s / 60:.3g} min" if end_s < 7200 else f"{at_s / 3600:.3g} h"


# Clouds


def cloud(title: str, groups: Sequence[Line], marked: Sequence[Point]) -> Picture:
    """Points of a plane whose axes have no meaning by themselves, each group in a colour; `marked` ones as crosses."""
    left, top, right, bottom = 20.0, 36.0, 620.0, 436.0
    heading = _text(8, 18, title, class_="title")
    points = [point for group in groups for point in group.points] + list(marked)
    if not points:
        return Picture(right + 20, top, title, heading)

    def placed(at: int, low_to: float, high_to: float) -> Callable[[Point], float]:
        low, high = min(point[at] for point in points), max(point[at] for point in points)
        return lambda point: low_to + (point[at] - low) / ((high - low) or 1.0) * (high_to - low_to)

    across, up = placed(0, left, right), placed(1, bottom, top)
    marks = [heading]
    key_x, key_y = left, bottom + 24
    for number, group in enumerate(groups):
        marks += [
            _mark("circle", cx=across(point), cy=up(point), r="2.2", fill=_colour(number), opacity="0.6")
            for point in group.points
        ]
        width = 40 + 6.8 * len(group.name)
        if key_x > left and key_x + width > right:
            key_x, key_y = left, key_y + 18
        marks.append(_mark("circle", cx=key_x + 5, cy=key_y - 4, r="4", fill=_colour(number)))
        marks.append(_text(key_x + 14, key_y, group.name, class_="name"))
        key_x += width
    for point in marked:
        x, y = across(point), up(point)
        marks.append(_line(x - 5, y - 5, x + 5, y + 5, stroke="var(--ink)", stroke_width=2))
        marks.append(_line(x - 5, y + 5, x + 5, y - 5, stroke="var(--ink)", stroke_width=2))
    said = f"{title}: {len(points) - len(marked)} points in {len(groups)} groups, {len(marked)} crosses"
    return Picture(right + 20, key_y + 12, said, Markup("").join(marks))
