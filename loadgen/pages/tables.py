"""Defines the tables of a report: which figures they hold, in which order, and how each is written.

A missing value is shown as not measured, or as a dash where there was nothing to measure; it is never a zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from loadgen.figures import Figures
from loadgen.pages.markdown import NOTHING

UNSEEN = "not measured"
_REGIONS_LISTED_MAX = 100
_FAILURES_MAX = 200
_RANKS = ("p10", "p25", "p50", "p75", "p90", "p99", "mean")


class TableCell(NamedTuple):
    text: str
    note: str = ""
    """Smaller text beside the value."""
    is_unseen: bool = False
    heat: float | None = None
    """Intensity of the background colour, from 0 to 1."""


class TableRow(NamedTuple):
    name: str
    cells: Sequence[TableCell]


class TablePart(NamedTuple):
    title: str
    rows: Sequence[TableRow]


@dataclass(frozen=True, slots=True)
class Table:
    label: str
    """Label for screen readers."""
    heads: Sequence[str]
    parts: Sequence[TablePart]
    caption: str = ""
    kind: str = ""


def _plain(label: str, heads: Sequence[str], rows: Sequence[TableRow], *, caption: str = "", kind: str = "") -> Table:
    return Table(label, heads, [TablePart("", rows)], caption, kind)


_Value = Callable[[Figures], float | None]
_Shown = Callable[[float], str]


class _Column(NamedTuple):
    title: str
    value_of: _Value
    shown: _Shown
    unseen: str = UNSEEN


def _quantile(kind: str, name: str, factor: float = 0.001) -> _Value:
    return lambda total: None if total[kind] is None else total[kind][name] * factor


def _plainly(key: str) -> _Value:
    return lambda total: total.get(key)


def _needed(how: str) -> _Value:
    return lambda total: None if total.get("replicas_needed") is None else total["replicas_needed"][how]


def _in(form: str) -> _Shown:
    return lambda value: format(value, form)


def _three_digits(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:,.0f}"


_SHARE, _COUNT, _SHORT = _in(".1%"), _in(",.0f"), _in(",.1f")
_ASKED = (
    _Column("requests asked", _plainly("requests"), _COUNT),
    _Column("failed", _plainly("failed"), _COUNT),
    _Column("unfinished", _plainly("unfinished"), _COUNT),
)
_SPEED = (
    _Column("requests/s", _plainly("requests_per_s"), _SHORT, NOTHING),
    _Column("output tokens/s", _plainly("tokens_per_s"), _COUNT, NOTHING),
    _Column("TTFT p50, s", _quantile("ttft_ms", "p50"), _three_digits, NOTHING),
    _Column("TTFT p90, s", _quantile("ttft_ms", "p90"), _three_digits, NOTHING),
    _Column("last token p50, s", _quantile("duration_ms", "p50"), _three_digits, NOTHING),
    _Column("last token p90, s", _quantile("duration_ms", "p90"), _three_digits, NOTHING),
    _Column("TPOT p50, ms", _quantile("tpot_ms", "p50", 1.0), _three_digits, NOTHING),
)
_PLACES = (
    _Column("prefix hits, in engines", _plainly("prefix_hit_rate"), _SHARE),
    _Column("cached prompt tokens, as answers say", _plainly("cached_share"), _SHARE),
    _Column("served in another region", _plainly("forwarded_share"), _SHARE),
)
_ENGINES = (
    _Column("requests per engine, mean", _plainly("outstanding_mean"), _SHORT),
    _Column("busiest engine / mean", _plainly("outstanding_max_to_mean"), _in(".2f")),
    _Column("busiest / idlest engine", _plainly("outstanding_max_to_min"), _in(".2f")),
    _Column("spread of engines, p90 − p10", _plainly("outstanding_p90_minus_p10"), _SHORT),
    _Column("waiting at gateways, mean", _plainly("queue_mean"), _SHORT),
    _Column("waiting at gateways, most", _plainly("queue_max"), _COUNT),
)
_OPEN = _Column("open at once, most", _plainly("in_flight_max"), _COUNT)
_FLEET = (
    _OPEN,
    _Column("replicas needed, regions together", _needed("together"), _COUNT),
    _Column("replicas needed, regions apart", _needed("apart"), _COUNT),
)
_PARTS = (
    ("Load", _ASKED),
    ("Speed", _SPEED),
    ("Places and caches", _PLACES),
    ("Engines and queues", _ENGINES),
    ("Fleet", _FLEET),
)
_OF_A_REGION = (*_ASKED, *_SPEED, *_PLACES, _OPEN)
_OF_A_VARIANT = tuple(column for _, columns in _PARTS for column in columns)


def distribution(title: str, unit: str, rows: Mapping[str, Mapping[str, float]]) -> Table:
    """Table of the figures of a box plot."""
    caption = f"{title}, {unit}"
    shown = [TableRow(name, [TableCell(_three_digits(box[rank])) for rank in _RANKS]) for name, box in rows.items()]
    return _plain(caption, ["run", *_RANKS], shown, caption=caption)


def overview(runs: Sequence[Figures]) -> Table:
    """Table with a row for each figure and a column for each run; speeds also have their ratio to the first run."""
    about = "All regions together" + (f"; × is beside {runs[0]['name']}" if len(runs) > 1 else "")
    parts = [
        TablePart(
            title, [TableRow(column.title, [_compared(run, runs[0], column) for run in runs]) for column in columns]
        )
        for title, columns in _PARTS
    ]
    return Table(about, ["figure", *(run["name"] for run in runs)], parts, about)


def _compared(run: Figures, first: Figures, column: _Column) -> TableCell:
    cell, base = _cell(run["total"], column), column.value_of(first["total"])
    value = column.value_of(run["total"])
    if value is None or not base or run is first or column not in _SPEED:
        return cell
    return cell._replace(note=f"× {value / base:.2f}")


def _cell(total: Figures, column: _Column) -> TableCell:
    value = column.value_of(total)
    return TableCell(column.unseen, is_unseen=True) if value is None else TableCell(column.shown(value))


def by_region(document: Figures) -> Table:
    """Table with a part for each region, in it a row for each run."""
    parts = [
        TablePart(
            region,
            [TableRow(run["name"], [_cell(run["regions"][region], each) for each in _OF_A_REGION])
             for run in document["runs"]],
        )
        for region in document["regions"][:_REGIONS_LISTED_MAX]
    ]  # fmt: skip
    return Table("By region and run", ["run", *(column.title for column in _OF_A_REGION)], parts)


def regions_left_out(document: Figures) -> int:
    return max(0, len(document["regions"]) - _REGIONS_LISTED_MAX)


def sweep(cells: Sequence[tuple[str, Figures]]) -> Table:
    """Table of a sweep, each row named after its variant and run."""
    rows = [
        TableRow(f"{name} {run['name']}", [_cell(run["total"], column) for column in _OF_A_VARIANT])
        for name, document in cells
        for run in document["runs"]
    ]
    return _plain("Every variant and run", ["variant and run", *(column.title for column in _OF_A_VARIANT)], rows)


def flow(run: Figures, regions: Sequence[str]) -> Table:
    """Table of requests with a row for each client's region and a column for each engine's."""
    counted = {(each["client_region"], each["engine_region"]): each["requests"] for each in run["flows"]}
    totals: Counter[str] = Counter()
    for (client, _), count in counted.items():
        totals[client] += count
    rows = [
        TableRow(client, [_flow_cell(counted.get((client, engine), 0), totals[client]) for engine in regions])
        for client in regions
    ]
    return _plain(
        f"Regions that asked and that served, {run['name']}", ["asked in \\ served in", *regions], rows, kind="flow"
    )


def _flow_cell(count: int, total: int) -> TableCell:
    return TableCell(f"{count / total:.1%}", f"{count:,}", heat=0.08 + 0.5 * count / total) if count else TableCell("·")


def reasons(runs: Sequence[Figures]) -> Table:
    """Table of attempts by placement rule: those that stayed, those that were forwarded, and refusals."""
    counted = {run["name"]: _attempts(run) for run in runs}
    totals = {run["name"]: sum(each["attempts"] for each in run["placements"]) for run in runs}
    rows = [
        TableRow(reason, [_share_cell(each[reason], totals[name]) for name, each in counted.items()])
        for reason in sorted({reason for each in counted.values() for reason in each})
    ]
    return _plain("Why requests went where they went", ["where, and by which rule", *counted], rows)


def _attempts(run: Figures) -> Counter[str]:
    counted: Counter[str] = Counter()
    for each in run["placements"]:
        where = "stayed" if each["from"] == each["to"] else "forwarded"
        counted[f"{where}: {each['reason']}"] += each["attempts"]
        if where == "forwarded":
            counted["forwarded, all"] += each["attempts"]
    for reason, count in run["refusals"].items():
        counted[f"then refused by the peer: {reason}"] = count
    return counted


def _share_cell(count: int, total: int) -> TableCell:
    return TableCell(f"{count:,}", f"{count / total:.1%}") if count and total else TableCell(str(count))


def failures(runs: Sequence[Figures]) -> Table | None:
    """Failures as clients saw them, with a column for each run; None where no request failed."""
    details = sorted({detail for run in runs for detail in run["total"]["failures"]})[:_FAILURES_MAX]
    rows = [
        TableRow(each, [TableCell(_COUNT(run["total"]["failures"].get(each, 0))) for run in runs]) for each in details
    ]
    return _plain("What failed", ["as clients saw it", *(run["name"] for run in runs)], rows) if rows else None
