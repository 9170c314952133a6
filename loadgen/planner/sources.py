"""Reads a plan's requests: a recorded load, two cumulative curves, or live gateways' counts.

It reads, and lists the assumptions of each source. It plans nothing.
"""

from __future__ import annotations

import csv
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadgen.planner.histogram import HistogramError, lengths_from_pages
from loadgen.planner.lengths import RequestShape, WeightedShapes, paired, quantiles_of, recorded
from loadgen.traces.files import Draw, TraceError, opened, read_trace

DRAWS = 6_000
_SEED = 1
_PAGE_BYTES_MAX = 2**25
_PATIENCE_S = 10.0
_SCHEMES = ("http://", "https://")


class SourceError(Exception):
    """A source cannot be used; the message is text for the user who named it."""


@dataclass(frozen=True, slots=True)
class Source:
    """Requests to plan for, and notes on their origin."""

    name: str
    lengths: WeightedShapes
    requests: int
    """Number recorded or counted; 0 for curves."""
    rate_per_s: float | None = None
    """Recorded rate; None where the source has none."""
    notes: tuple[str, ...] = ()


WHOLE_PROMPTS = "prompts are read whole: what a prefix cache would save is not counted"


def from_trace(path: Path, draw: Draw | None = None) -> Source:
    """Source from a trace. Raises SourceError."""
    try:
        trace = read_trace(path, draw=draw)
    except TraceError as error:
        raise SourceError(str(error)) from error
    shapes = [RequestShape(row.passage.tokens, row.output_tokens) for row in trace.rows]
    usable = sum(each.prompt_tokens > 0 and each.output_tokens > 0 for each in shapes)
    span_s = max(row.at_s for row in trace.rows) - min(row.at_s for row in trace.rows)
    try:
        lengths = recorded(shapes)
    except ValueError as error:
        raise SourceError(f"{path.name}: {error}") from error
    dropped = [f"{len(shapes) - usable} requests without a prompt or an answer are left out"]
    notes = (*trace.notes, *(dropped if usable < len(shapes) else []), WHOLE_PROMPTS)
    return Source(path.name, lengths, usable, usable / span_s if span_s > 0 else None, notes)


def from_curves(prompts: Path, answers: Path) -> Source:
    """Source from two CSV files with a header: tokens, and the share of requests with that many or fewer. Raises
    SourceError."""
    curves = [quantiles_of(cumulative(path)) for path in (prompts, answers)]
    lengths = paired(curves[0], curves[1], seed=_SEED, draws=DRAWS)
    note = "prompts and answers are drawn independently of each other: only their curves are known"
    return Source(f"{prompts.name} and {answers.name}", lengths, 0, None, (note, WHOLE_PROMPTS))


def cumulative(path: Path) -> list[tuple[float, float]]:
    """Points of a cumulative curve in order, with shares that never fall. Raises SourceError."""
    try:
        with opened(path) as lines:
            return _points(lines, path)
    except TraceError as error:
        raise SourceError(str(error)) from error


def _points(lines: Iterable[str], path: Path) -> list[tuple[float, float]]:
    rows = csv.reader(line for line in lines if line.strip())
    next(rows, None)
    points: list[tuple[float, float]] = []
    for number, cells in enumerate(rows, 2):
        try:
            tokens, share = float(cells[0]), float(cells[1])
        except (ValueError, IndexError):
            raise SourceError(f"{path.name}: line {number}: should hold tokens and a share") from None
        if not (0 <= share <= 1 and 0 <= tokens < 1e9):
            raise SourceError(f"{path.name}: line {number}: {share} of requests up to {tokens} tokens cannot be")
        points.append((max(tokens, points[-1][0] if points else 0.0), max(share, points[-1][1] if points else 0.0)))
    if len(points) < 2 or points[-1][1] < 0.5:
        raise SourceError(f"{path.name}: a cumulative curve has at least two points, and ends near 1")
    return points


def from_gateways(places: Sequence[str], model: str | None) -> Source:
    """Source from gateways' metrics pages, each a URL or a file. Raises SourceError."""
    try:
        counted = lengths_from_pages([_page(place) for place in places], model)
    except HistogramError as error:
        raise SourceError(f"{', '.join(places)}: {error}") from error
    return Source(f"{counted.model}, as gateways have counted", counted.lengths, counted.requests, None, counted.notes)


def _page(place: str) -> str:
    try:
        if place.startswith(_SCHEMES):
            with urllib.request.urlopen(place, timeout=_PATIENCE_S) as answer:  # noqa: S310 - http or https, see above
                return str(answer.read(_PAGE_BYTES_MAX).decode("utf-8", "replace"))
        return Path(place).read_text(encoding="utf-8", errors="replace")
    except (OSError, urllib.error.URLError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise SourceError(f"{place} cannot be read: {reason}") from error
