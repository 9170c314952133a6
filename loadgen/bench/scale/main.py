"""`nightside bench scale`: how fast the simulator is, how much it takes for large fleets, and how its cost grows.

The document that it writes is the slot `scale.json` of the results page: text, and one table. It is written anew after
each run, so that one that is stopped keeps what it has.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from loadgen.bench.scale.measure import Limits, Reading, Taken, measure
from loadgen.bench.scale.points import LARGE, POINTS, SLOTS, Point

_KINDS = tuple(dict.fromkeys(point.kind for point in POINTS))
_TEN_MINUTES_S = 600
_GIB = 2**30
_HEAD = (
    "what grows",
    "regions x replicas",
    "simulated s",
    "requests",
    "requests/s a replica",
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
@click.option("--resume", is_flag=True, help="Leave out what the file holds already, if it came to its end.")
@click.option(
    "--cpu-minutes", type=click.FloatRange(min=0, min_open=True), default=20.0, show_default=True,
    help="A run that takes more is stopped, and stands in the file as far as it came.",
)  # fmt: skip
@click.option(
    "--memory-gib", type=click.FloatRange(min=0, min_open=True), default=12.0, show_default=True,
    help="The same for memory.",
)  # fmt: skip
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the document here.")
@click.option("--json", "as_json", is_flag=True, help="Print the document; progress goes to stderr.")
def scale(
    *,
    only: tuple[str, ...],
    quick: bool,
    resume: bool,
    cpu_minutes: float,
    memory_gib: float,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure what simulated fleets of growing size cost. The largest take minutes and gigabytes.

    With --only, what the file already holds of other points is kept.
    """
    limits = Limits(cpu_minutes * 60, round(memory_gib * _GIB))
    wanted = [shortened(point) if quick else point for point in POINTS if not only or point.kind in only]
    measured = _kept(out, wanted, keeps_whole=resume) if only or resume else []
    done = [point for point, _ in measured]
    for point in (point for point in wanted if point not in done):
        reading = measure(point, limits, partial(_tell, point))
        click.echo(f"{_name(point)}: {told(point, reading)}", err=True)
        measured.append((point, reading))
        if out is not None:
            _write(out, document_of(measured))
    if as_json:
        click.echo(json.dumps(document_of(measured), indent=2))


def _tell(point: Point, taken: Taken) -> None:
    click.echo(
        f"{_name(point)}: {taken.simulated_s:,.1f} of {point.simulated_s:,} s, {taken.requests:,} requests, "
        f"{taken.cpu_s:,.0f} s of CPU, {taken.rss_bytes_max / _GIB:.2f} GiB",
        err=True,
    )


def _name(point: Point) -> str:
    return f"{point.kind:>9} {point.name}"


def _write(out: Path, document: Mapping[str, Any]) -> None:
    """All of it or nothing: whoever is stopped here leaves the file as it was."""
    fresh = out.with_name(f"{out.name}.part")
    fresh.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    fresh.replace(out)


def shortened(point: Point) -> Point:
    return Point(point.kind, point.regions, point.replicas_a_region, max(3, point.simulated_s // 10), point.queue // 10)


def told(point: Point, reading: Reading) -> str:
    stopped = f"stopped at {reading.simulated_s:g} simulated seconds by {reading.stopped_by}: "
    took = (
        f"{reading.requests:,} requests in {reading.wall_s:,.1f} s ({reading.cpu_s:,.1f} s of CPU), "
        f"{reading.requests_per_cpu_s:,.0f} a CPU second, {reading.busy_share:.0%} of the slots busy, "
        f"{reading.rss_bytes_max / _GIB:.2f} GiB{_extrapolated(point, reading)}"
    )
    return stopped + took if reading.stopped_by else took


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
        if reading.stopped_by:
            stopped = (
                f"stopped at {reading.simulated_s:g} of {point.simulated_s:,} s by its limit: {reading.stopped_by}"
            )
            text.append(f"{point.name} ({point.kind}) was {stopped}.")
        if point.kind == LARGE:
            text.append(_about_large(point, reading))
    return text


def _about_large(point: Point, reading: Reading) -> str:
    return (
        f"{point.name} replicas were played for {reading.simulated_s:.0f} s, under less load than the others: "
        f"{_rate(point, reading):.3f} requests a second and replica, from one region in ten that has more users than "
        f"its replicas take at once and nine that have few{_extrapolated(point, reading)}."
    )


def _rate(point: Point, reading: Reading) -> float:
    """Requests a second and replica."""
    return reading.requests / point.replicas / max(reading.simulated_s, 1)


def _extrapolated(point: Point, reading: Reading) -> str:
    if point.kind != LARGE:
        return ""
    cpu_min = reading.cpu_s_for(_TEN_MINUTES_S) / 60
    return f"; ten simulated minutes would take {cpu_min:,.0f} min of CPU, if they went on as its second half"


def _row(point: Point, reading: Reading) -> list[str]:
    return [
        point.kind,
        point.name,
        _simulated(point, reading),
        f"{reading.requests:,}",
        f"{_rate(point, reading):.3f}",
        f"{reading.busy_share:.0%}",
        f"{reading.queue_max:,}",
        f"{reading.wall_s:,.1f}",
        f"{reading.cpu_s:,.1f}",
        f"{reading.requests_per_cpu_s:,.0f}",
        f"{reading.cpu_us_a_request:,.0f}",
        f"{reading.rss_bytes_max / _GIB:.2f}",
    ]


def _simulated(point: Point, reading: Reading) -> str:
    if reading.stopped_by:
        return f"{reading.simulated_s:,.1f} of {point.simulated_s:,}: stopped"
    return f"{point.simulated_s:,}"


def _kept(out: Path | None, wanted: Sequence[Point], *, keeps_whole: bool) -> list[Measured]:
    """What an earlier run left of points that are not wanted now, and of those that are if they need no other run."""
    if out is None or not out.exists():
        return []
    try:
        old = json.loads(out.read_text(encoding="utf-8"))["measurements"]
        pairs = [(Point(**each.pop("point")), Reading(**each)) for each in old]
    except (ValueError, KeyError, TypeError) as error:
        raise click.ClickException(f"{out} is no document of this bench: {error}") from error
    kinds = {point.kind for point in wanted}
    return [
        (point, reading)
        for point, reading in pairs
        if (keeps_whole and point in wanted and not reading.stopped_by) or point.kind not in kinds
    ]
