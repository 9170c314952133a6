"""`nightside bench scale`: measures the simulator's speed, its costs for large fleets, and how they grow.

The document that it writes is the slot `scale.json` of the results page: text, and one table. It is rewritten after
each run, so that an interrupted bench keeps its finished runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from loadgen.bench.scale.measure import RunFailed, ScaleLimits, ScaleReading, ScaleSample, measure
from loadgen.bench.scale.points import LARGE, POINTS, SLOTS, ScalePoint
from loadgen.bench.scale.provenance import Provenance, provenance_here
from loadgen.pages.markdown import NOTHING

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
    "CPU s to build",
    "wall s",
    "CPU s",
    "requests a CPU s",
    "CPU us a request",
    "memory GiB",
)


class ScaleMeasurement(NamedTuple):
    point: ScalePoint
    reading: ScaleReading
    provenance: Provenance


@click.command()
@click.option("--only", type=click.Choice(_KINDS), multiple=True, help="Measure only this point; repeatable.")
@click.option("--quick", is_flag=True, help="Simulate a tenth of the time.")
@click.option(
    "--resume", is_flag=True,
    help="Skip runs that the file holds complete, from such a machine and these sources.",
)  # fmt: skip
@click.option(
    "--cpu-minutes", type=click.FloatRange(min=0, min_open=True), default=20.0, show_default=True,
    help="Stop a run after this many CPU minutes; the file says how far it came.",
)  # fmt: skip
@click.option(
    "--memory-gib", type=click.FloatRange(min=0, min_open=True), default=12.0, show_default=True,
    help="Stop a run above this many GiB of memory.",
)  # fmt: skip
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the document to this file.")
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
    """Measure the cost of simulated fleets of growing size; the largest take minutes and gigabytes.

    With --only, what the file already holds of other points is kept, and the document says where that was measured.
    """
    if resume and out is None:
        raise click.UsageError("--resume needs the file to go on with: give --out.")
    limits = ScaleLimits(cpu_minutes * 60, round(memory_gib * _GIB))
    wanted = [shortened(point) if quick else point for point in POINTS if not only or point.kind in only]
    here = provenance_here()
    measured = _kept(out, wanted, here if resume else None) if only or resume else []
    done = [each.point for each in measured]
    for point in (point for point in wanted if point not in done):
        reading = _measured(point, limits)
        click.echo(f"{_name(point)}: {told(point, reading)}", err=True)
        measured.append(ScaleMeasurement(point, reading, here))
        if out is not None:
            _write(out, document_of(measured))
    if as_json:
        click.echo(json.dumps(document_of(measured), indent=2))


def _measured(point: ScalePoint, limits: ScaleLimits) -> ScaleReading:
    try:
        return measure(point, limits, partial(_tell, point))
    except RunFailed as error:
        raise click.ClickException(f"{_name(point).strip()} could not be played: {error}") from error


def _tell(point: ScalePoint, taken: ScaleSample) -> None:
    click.echo(
        f"{_name(point)}: {taken.simulated_s:,.1f} of {point.simulated_s:,} s, {taken.requests:,} requests, "
        f"{taken.cpu_s:,.0f} s of CPU after {taken.built_cpu_s:,.0f} to build it, {taken.rss_bytes_max / _GIB:.2f} GiB",
        err=True,
    )


def _name(point: ScalePoint) -> str:
    return f"{point.kind:>9} {point.name}"


def _write(out: Path, document: Mapping[str, Any]) -> None:
    """Write the document atomically: an interruption leaves the file as it was."""
    fresh = out.with_name(f"{out.name}.part")
    fresh.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    fresh.replace(out)


def shortened(point: ScalePoint) -> ScalePoint:
    return ScalePoint(
        point.kind, point.regions, point.replicas_a_region, max(3, point.simulated_s // 10), point.queue // 10
    )


def told(point: ScalePoint, reading: ScaleReading) -> str:
    took = (
        f"{_shown(reading.requests, ',')} requests in {_shown(reading.wall_s, ',.1f')} s "
        f"({_shown(reading.cpu_s, ',.1f')} s of CPU), {_shown(reading.requests_per_cpu_s, ',.0f')} a CPU second, "
        f"{_shown(reading.busy_share, '.0%')} of the slots busy, {_shown(_gib(reading), '.2f')} GiB"
        f"{_extrapolated(point, reading)}"
    )
    return took if reading.is_whole else f"{_ended(point, reading)}: {took}"


def _ended(point: ScalePoint, reading: ScaleReading) -> str:
    """Reason why a run ended early."""
    if reading.killed_by:
        return f"killed by {reading.killed_by}, last heard of at {reading.simulated_s:g} of {point.simulated_s:,} s"
    if reading.wall_s is None:
        return f"stopped before its first second, while it was built, by its limit of {reading.stopped_by}"
    return f"stopped at {reading.simulated_s:g} of {point.simulated_s:,} s by its limit of {reading.stopped_by}"


def _shown(figure: float | None, form: str) -> str:
    return NOTHING if figure is None else format(figure, form)


def _gib(reading: ScaleReading) -> float | None:
    return None if reading.rss_bytes_max is None else reading.rss_bytes_max / _GIB


def document_of(measured: Sequence[ScaleMeasurement]) -> dict[str, Any]:
    """Text and a table for the page, and the figures themselves."""
    ordered = sorted(measured, key=lambda each: (_KINDS.index(each.point.kind), each.point.replicas, each.point.queue))
    return {
        "text": _text(ordered),
        "head": list(_HEAD),
        "rows": [_row(each.point, each.reading) for each in ordered],
        "measurements": [
            {"point": asdict(each.point), "provenance": asdict(each.provenance), **asdict(each.reading)}
            for each in ordered
        ],
    }


def _text(measured: Sequence[ScaleMeasurement]) -> list[str]:
    text = [
        f"`nightside bench scale`, each run in one process. Engines are L4s with {SLOTS} slots; one region in three "
        "has three times the users of the others and overflows; answers have 300 tokens in the mean; any request "
        "may go to any region. Heartbeats come in every 20 ms, and leave out changes of a number by less than a "
        "quarter. In the runs of 100 regions answers have 600 tokens in the mean, and heartbeats go out and come in "
        "every 250 ms at most.",
        *_about_provenances(measured),
    ]
    for point, reading, _ in measured:
        if not reading.is_whole:
            text.append(f"{point.name} ({point.kind}) was {_ended(point, reading)}.")
        if point.kind == LARGE and reading.requests:
            text.append(_about_large(point, reading))
    return text


def _about_provenances(measured: Sequence[ScaleMeasurement]) -> list[str]:
    """Line on machine and sources if all measurements share them, else one line for each different pair."""
    names: dict[str, list[str]] = {}
    for each in measured:
        names.setdefault(each.provenance.told(), []).append(f"{each.point.name} ({each.point.kind})")
    if len(names) == 1:
        return [f"Measured on {told}." for told in names]
    return [f"Not to be compared with the others: {'; '.join(names[told])}, measured on {told}." for told in names]


def _about_large(point: ScalePoint, reading: ScaleReading) -> str:
    return (
        f"{point.name} replicas were played for {reading.simulated_s:.0f} s, under less load than the others: "
        f"{_shown(_rate(point, reading), '.3f')} requests a second and replica, from one region in ten that has more "
        f"users than its replicas take at once and nine that have few{_extrapolated(point, reading)}."
    )


def _rate(point: ScalePoint, reading: ScaleReading) -> float | None:
    """Requests per second and replica."""
    if not reading.requests or not reading.simulated_s:
        return None
    return reading.requests / point.replicas / reading.simulated_s


def _extrapolated(point: ScalePoint, reading: ScaleReading) -> str:
    cpu_s = reading.cpu_s_for(_TEN_MINUTES_S) if point.kind == LARGE else None
    if cpu_s is None:
        return ""
    return f"; ten simulated minutes would take {cpu_s / 60:,.0f} min of CPU, if they went on as its second half"


def _row(point: ScalePoint, reading: ScaleReading) -> list[str]:
    return [
        point.kind,
        point.name,
        _simulated(point, reading),
        _shown(reading.requests, ","),
        _shown(_rate(point, reading), ".3f"),
        _shown(reading.busy_share, ".0%"),
        _shown(reading.queue_max, ","),
        _shown(reading.built_cpu_s, ",.1f"),
        _shown(reading.wall_s, ",.1f"),
        _shown(reading.cpu_s, ",.1f"),
        _shown(reading.requests_per_cpu_s, ",.0f"),
        _shown(reading.cpu_us_a_request, ",.0f"),
        _shown(_gib(reading), ".2f"),
    ]


def _simulated(point: ScalePoint, reading: ScaleReading) -> str:
    if reading.is_whole:
        return f"{point.simulated_s:,}"
    return f"{reading.simulated_s:,.1f} of {point.simulated_s:,}: {'killed' if reading.killed_by else 'stopped'}"


def _kept(out: Path | None, wanted: Sequence[ScalePoint], here: Provenance | None) -> list[ScaleMeasurement]:
    """Measurements of an earlier run to keep: those of other kinds of points, and finished ones of the wanted points if
    they have this machine and these sources."""
    if out is None or not out.exists():
        return []
    kinds = {point.kind for point in wanted}
    return [
        each
        for each in _read(out)
        if (each.provenance == here and each.point in wanted and each.reading.is_whole) or each.point.kind not in kinds
    ]


def _read(out: Path) -> list[ScaleMeasurement]:
    try:
        old = json.loads(out.read_text(encoding="utf-8"))["measurements"]
        return [_measured_of(each) for each in old]
    except (ValueError, KeyError, TypeError) as error:
        raise click.ClickException(f"{out} is no document of this bench: {error}") from error


def _measured_of(document: Mapping[str, Any]) -> ScaleMeasurement:
    figures = dict(document)
    point, provenance = ScalePoint(**figures.pop("point")), Provenance(**figures.pop("provenance"))
    return ScaleMeasurement(point, ScaleReading(**figures), provenance)
