"""Makes the coastline of the operators' page from Natural Earth's land at 1:110 million, as `land-110m.json` of the npm
package `world-atlas` has it in TopoJSON. Run it by hand to change the map:

    python -m loadgen.pages.world_map land-110m.json > mesh/page/assets/world.js

Natural Earth is in the public domain; `world-atlas` is under the ISC licence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

Point = tuple[float, float]
"""Longitude and latitude, in degrees."""
Ring = list[Point]

_SOUTH = -60.0
"""Latitude below which land is left out: no engines run there."""
_HEADER = """\
// The coastlines of the world, in degrees east and north. Made by loadgen/pages/world_map.py from land-110m.json of the
// npm package world-atlas {version} (ISC), which is Natural Earth's land at 1:110m (public domain).

export const WORLD =
"""
_LINE = 118


def rings_of(topology: dict[str, Any], name: str = "land") -> Iterator[Ring]:
    """Closed rings of one object."""
    arcs = [list(_arc(topology, arc)) for arc in topology["arcs"]]
    for geometry in _geometries(topology["objects"][name]):
        polygons = geometry["arcs"] if geometry["type"] == "MultiPolygon" else [geometry["arcs"]]
        for ring in (ring for polygon in polygons for ring in polygon):
            points: Ring = []
            for index in ring:
                line = arcs[index] if index >= 0 else arcs[~index][::-1]
                points += line[bool(points) :]
            yield unwrapped(points)


def _geometries(thing: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if thing["type"] == "GeometryCollection":
        for each in thing["geometries"]:
            yield from _geometries(each)
    else:
        yield thing


def _arc(topology: dict[str, Any], steps: Iterable[Sequence[int]]) -> Iterator[Point]:
    """Points of a quantised arc, in which each point is stored as the difference from the one before."""
    (scale_x, scale_y), (shift_x, shift_y) = topology["transform"]["scale"], topology["transform"]["translate"]
    x = y = 0
    for dx, dy in steps:
        x, y = x + dx, y + dy
        yield x * scale_x + shift_x, y * scale_y + shift_y


def unwrapped(ring: Ring) -> Ring:
    """Ring whose longitudes continue beyond the 180th meridian instead of jumping to the other end of the world."""
    points, turns = [ring[0]], 0.0
    for (before, _), (x, y) in pairwise(ring):
        turns += 360.0 * ((before - x > 180) - (x - before > 180))
        points.append((x + turns, y))
    middle = (min(x for x, _ in points) + max(x for x, _ in points)) / 2
    shift = 360.0 * ((middle < -180) - (middle > 180))
    return [(x + shift, y) for x, y in points]


def simplified(ring: Ring, tolerance: float) -> Ring:
    """Ring simplified by Douglas and Peucker: no omitted point is farther than `tolerance` from the drawn line."""
    kept = {0, len(ring) - 1}
    middle = max(range(len(ring)), key=lambda index: _squared(ring[0], ring[index]))
    spans = [(0, middle), (middle, len(ring) - 1)]
    kept.add(middle)
    while spans:
        first, last = spans.pop()
        if last - first < 2:
            continue
        farthest = max(range(first + 1, last), key=lambda index: _distance(ring[index], ring[first], ring[last]))
        if _distance(ring[farthest], ring[first], ring[last]) > tolerance:
            kept.add(farthest)
            spans += [(first, farthest), (farthest, last)]
    return [ring[index] for index in sorted(kept)]


def _squared(one: Point, other: Point) -> float:
    return (one[0] - other[0]) ** 2 + (one[1] - other[1]) ** 2


def _distance(point: Point, start: Point, end: Point) -> float:
    length = _squared(start, end)
    if not length:
        return float(_squared(point, start) ** 0.5)
    along = ((point[0] - start[0]) * (end[0] - start[0]) + (point[1] - start[1]) * (end[1] - start[1])) / length
    along = min(1.0, max(0.0, along))
    nearest = start[0] + along * (end[0] - start[0]), start[1] + along * (end[1] - start[1])
    return float(_squared(point, nearest) ** 0.5)


def area_of(ring: Ring) -> float:
    pairs = zip(ring, [*ring[1:], ring[0]], strict=True)
    return abs(sum(one[0] * other[1] - other[0] * one[1] for one, other in pairs)) / 2


def path_of(rings: Iterable[Ring]) -> str:
    """SVG path data, in tenths of a degree, each point as the difference from the one before."""
    return "".join(_closed(ring) for ring in rings)


def _closed(ring: Ring) -> str:
    points = [(round(x * 10), round(y * 10)) for x, y in ring]
    points = [each for index, each in enumerate(points) if not index or each != points[index - 1]]
    if points[0] == points[-1]:
        points.pop()
    if len(points) < 3:
        return ""
    steps = [f"{_tenths(x - px)} {_tenths(y - py)}" for (px, py), (x, y) in pairwise(points)]
    return f"M{_tenths(points[0][0])} {_tenths(points[0][1])}l{' '.join(steps)}z"


def _tenths(number: int) -> str:
    return f"{number / 10:g}"


def module_of(path: str, version: str) -> str:
    lines = [path[start : start + _LINE - 8] for start in range(0, len(path), _LINE - 8)]
    return _HEADER.format(version=version) + " +\n".join(f'  "{line}"' for line in lines) + ";\n"


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--tolerance", type=float, default=0.35, show_default=True, help="Degrees that a coast may be off by.")
@click.option("--area", type=float, default=1.5, show_default=True, help="Square degrees that an island has at least.")
@click.option("--version", default="2.0.2", show_default=True, help="Of world-atlas.")
def main(file: Path, *, tolerance: float, area: float, version: str) -> None:
    """Print the page's module with the coastline of FILE."""
    rings = rings_of(json.loads(file.read_text()))
    drawn = (ring for ring in rings if area_of(ring) >= area and max(y for _, y in ring) > _SOUTH)
    click.echo(module_of(path_of(simplified(ring, tolerance) for ring in drawn), version), nl=False)


if __name__ == "__main__":
    main()
