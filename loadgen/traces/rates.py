"""Parses request rates recorded over days and fits them to a run. Pure: lines in, a curve out.

A curve shifted to another region's time of day does not describe that region's users; any use of `shift_hours` must
report it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from itertools import pairwise

from loadgen.traces.rows import RowFault
from loadgen.workload import RateCurve

Points = tuple[tuple[float, float], ...]
"""(hours, rate), in order of time."""

_DAY_HOURS = 24.0
_UNITS = (("minute", 1 / 60), ("hour", 1.0), ("day", _DAY_HOURS))


def parse_rates(lines: Iterable[str]) -> Points:
    """Parse a CSV with a header: one column for the time, or two for day and hour; the next one is the rate. Times are
    in seconds unless their title says minute, hour or day. Raises RowFault naming the line: a curve with a hole in it
    would be another curve."""
    rows = csv.reader(line for line in lines if line.strip())
    titles = [title.strip().lower() for title in next(rows, [])]
    hours_each = [_hours(titles[0])] if titles else []
    if len(titles) > 2 and titles[0].startswith("day") and titles[1].startswith("hour"):
        hours_each.append(1.0)
    points = [_point(number, cells, hours_each) for number, cells in enumerate(rows, 2)]
    if len(points) < 2:
        raise RowFault("a curve has at least two points")
    for number, ((early, _), (late, _)) in enumerate(pairwise(points), 3):
        if late <= early:
            raise RowFault(f"line {number}: times should be in order")
    return tuple(points)


def fitted(
    points: Sequence[tuple[float, float]],
    *,
    day_s: float,
    from_hours: float = 0.0,
    shift_hours: float = 0.0,
    peak: float | None = None,
    mean: float | None = None,
) -> RateCurve:
    """Curve from hour `from_hours` on, with one day squeezed into `day_s` and scaled to the given peak or mean. It
    repeats.

    `shift_hours` is how far the region's clock is ahead.
    """
    start, end = points[0][0], points[-1][0]
    span = end - start + (end - points[-2][0])
    turned = sorted(((at - start - from_hours - shift_hours) % span, rate) for at, rate in points)
    (first_at, first), (last_at, last) = turned[0], turned[-1]
    gap = first_at + span - last_at
    edge = last + (first - last) * (span - last_at) / gap
    whole = [(0.0, edge), *(point for point in turned if 0 < point[0] < span), (span, edge)]
    highest = max(rate for _, rate in whole)
    average = sum((a + b) / 2 * (late - early) for (early, a), (late, b) in pairwise(whole)) / span
    factor = peak / highest if peak is not None and highest else (mean or 0.0) / (average or 1.0)
    return RateCurve(tuple((at / _DAY_HOURS * day_s, rate * factor) for at, rate in whole))


def _hours(title: str) -> float:
    return next((hours for word, hours in _UNITS if title.startswith(word)), 1 / 3600)


def _point(number: int, cells: Sequence[str], hours_each: Sequence[float]) -> tuple[float, float]:
    count = len(hours_each)
    try:
        at = sum(float(cell) * hours for cell, hours in zip(cells[:count], hours_each, strict=True))
        rate = float(cells[count])
    except (ValueError, IndexError):
        raise RowFault(f"line {number}: {','.join(cells)[:80]!r} is no time and rate") from None
    if not 0 <= rate < float("inf"):
        raise RowFault(f"line {number}: {rate} is no rate")
    return at, rate
