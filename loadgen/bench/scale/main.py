"""`nightside bench scale`: how fast the simulator is, how much it takes for large fleets, and how its cost grows.

The document that it writes is the slot `scale.json` of the results page: text, and one table.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from loadgen.bench.scale.measure import Reading, measure
from loadgen.bench.scale.points import LARGE, POINTS, SLOTS, Point

_KINDS = tuple(dict.fromkeys(point.kind for point in POINTS))
_TEN_MINUTES_S = 600
_GIB = 2**30
_HEAD = (
    "what grows",
    "regions x replicas",
    "simulated s",
    "requests",
    "slots busy",
    "longest queue",
    "wall s",
    "CPU s",
    "requests a CPU s",
    "CPU us a request",
    "memory GiB",
)

Measured = tuple[Point, Reading]


@click.command()
@click.option("--only", type=click.Choice(_KINDS), multiple=True, help="Only these points; repeatable.")
@click.option("--quick", is_flag=True, help="A tenth of the simulated time.")
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the document here.")
@click.option("--json", "as_json", is_flag=True, help="Print the document; progress goes to stderr.")
def scale(*, only: tuple[str, ...], quick: bool, out: Path | None, as_json: bool) -> None:
    """Measure what simulated fleets of growing size cost. The largest take minutes and gigabytes.

    With --only, what the file already holds of other points is kept.
    """
    measured = _kept(out, only)
    for point in (point for point in POINTS if not only or point.kind in only):
        chosen = shortened(point) if quick else point
        reading = measure(chosen)
        click.echo(f"{chosen.kind:>9} {chosen.name}: {told(chosen, reading)}", err=True)
        measured.append((chosen, reading))
    document = document_of(measured)
    if out is not None:
        out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if as_json:
        click.echo(json.dumps(document, indent=2))


def shortened(point: Point) -> Point:
    return Point(point.kind, point.regions, point.replicas_a_region, max(3, point.simulated_s // 10), point.queue // 10)


def told(point: Point, reading: Reading) -> str:
    return (
        f"{reading.requests:,} requests in {reading.wall_s:,.1f} s ({reading.cpu_s:,.1f} s of CPU), "
        f"{reading.requests_per_cpu_s:,.0f} a CPU second, {reading.busy_share:.0%} of the slots busy, "
        f"{reading.rss_bytes_max / _GIB:.2f} GiB{_extrapolated(point, reading)}"
    )


def document_of(measured: Sequence[Measured]) -> dict[str, Any]:
    """Text and a table for the page, and the figures as they are."""
    ordered = sorted(measured, key=lambda pair: (_KINDS.index(pair[0].kind), pair[0].replicas, pair[0].queue))
    return {
        "text": _text(ordered),
        "head": list(_HEAD),
        "rows": [_row(point, reading) for point, reading in ordered],
        "measurements": [{"point": asdict(point), **asdict(reading)} for point, reading in ordered],
    }


def _text(measured: Sequence[Measured]) -> list[str]:
    text = [
        f"`nightside bench scale` on {os.cpu_count()} cores with Python {platform.python_version()}, each run in one "
        f"process. Engines are L4s with {SLOTS} slots; one region in three has three times the users of the others and "
        "overflows; answers have 300 tokens in the mean; anybody's request may go anywhere. Heartbeats come in every "
        "20 ms, and leave out changes of a number by less than a quarter. In the runs of 100 regions answers have 600 "
        "tokens in the mean, and heartbeats go out and come in every 250 ms at most."
    ]
    for point, reading in measured:
        if point.kind == LARGE:
            text.append(f"{point.name} replicas were played for {point.simulated_s} s{_extrapolated(point, reading)}.")
    return text


def _extrapolated(point: Point, reading: Reading) -> str:
    if point.kind != LARGE:
        return ""
    cpu_min = reading.cpu_s * _TEN_MINUTES_S / point.simulated_s / 60
    return f"; ten simulated minutes would take {cpu_min:,.0f} min of CPU at this rate"


def _row(point: Point, reading: Reading) -> list[str]:
    return [
        point.kind,
        point.name,
        f"{point.simulated_s:,}",
        f"{reading.requests:,}",
        f"{reading.busy_share:.0%}",
        f"{reading.queue_max:,}",
        f"{reading.wall_s:,.1f}",
        f"{reading.cpu_s:,.1f}",
        f"{reading.requests_per_cpu_s:,.0f}",
        f"{reading.cpu_us_a_request:,.0f}",
        f"{reading.rss_bytes_max / _GIB:.2f}",
    ]


def _kept(out: Path | None, only: tuple[str, ...]) -> list[Measured]:
    """What an earlier run left of points that are not measured now."""
    if out is None or not only or not out.exists():
        return []
    try:
        old = json.loads(out.read_text(encoding="utf-8"))["measurements"]
        pairs = [(Point(**each.pop("point")), Reading(**each)) for each in old]
    except (ValueError, KeyError, TypeError) as error:
        raise click.ClickException(f"{out} is no document of this bench: {error}") from error
    return [(point, reading) for point, reading in pairs if point.kind not in only]
