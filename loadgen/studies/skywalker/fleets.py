"""Sections of Fig. 10 and Fig. 3: the replicas that a mesh needs, and those of regions on their own, skewed and over a
day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from statistics import median

from loadgen.figures import Figures
from loadgen.pages.drawing import Line, lines
from loadgen.pages.markdown import NOTHING, table
from loadgen.pages.templates import picture_file
from loadgen.studies import numbers as of
from loadgen.studies.numbers import Middle, median_of, ratio
from loadgen.studies.skywalker.plan import (
    DAY_ALONE_FLEETS,
    DAY_FLEETS,
    DAY_TTFT_P90_S,
    REGION_LOCAL,
    REGIONS,
    SKEWED_FLEETS,
    SKYWALKER,
    WORTH,
)
from loadgen.studies.skywalker.reader import SectionReader

PAPER_OF_DAY = 0.405
_P90_HEAD = tuple(f"P90 of TTFT, {region}, s" for region in REGIONS)


def skewed_gain(reader: SectionReader, replicas: int, run: str = SKYWALKER) -> Middle | None:
    return ratio(reader.skewed(replicas, run), reader.skewed(replicas, REGION_LOCAL), of.THROUGHPUT)


def skewed_plot(reader: SectionReader) -> str:
    curves = [Line(name, points) for name in (SKYWALKER, WORTH, REGION_LOCAL) if (points := _throughputs(reader, name))]
    return picture_file(lines("Throughput by replicas, skewed load", curves, "replicas", "requests a second"))


def smallest(reader: SectionReader) -> list[str]:
    return [_smallest(reader, goal, run) for goal in (9, 12) for run in (SKYWALKER, WORTH)]


def _smallest(reader: SectionReader, goal: int, run: str) -> str:
    """Sentence on the smallest fleet of a mesh with the throughput of `goal` replicas apart."""
    needed = _throughput(reader, goal, REGION_LOCAL)
    if needed is None:
        return f"{goal} replicas apart were not played."
    fewest = min((count for count, each in _throughputs(reader, run) if each >= needed), default=None)
    start = f"{goal} replicas apart give {needed:.2f} requests/s; with {run}, "
    if fewest is None:
        return f"{start}no fleet that was measured does."
    return f"{start}{fewest} do, {1 - fewest / goal:.0%} fewer (paper: 9 for 12, 25 %)."


def _throughput(reader: SectionReader, replicas: int, run: str) -> float | None:
    return median_of(reader.skewed(replicas, run), of.THROUGHPUT)


def _throughputs(reader: SectionReader, run: str) -> list[tuple[int, float]]:
    """Throughput by number of replicas, of the fleets that were played."""
    found = [(count, _throughput(reader, count, run)) for count in SKEWED_FLEETS]
    return [(count, each) for count, each in found if each is not None]


# A day


def _days(reader: SectionReader) -> tuple[dict[int, list[Figures]], dict[int, list[Figures]]]:
    """Runs by replicas, pooled and apart."""
    plan = reader.plan
    return (
        _whole({count: reader.of(plan.day_pooled, str(count), SKYWALKER) for count in DAY_FLEETS}),
        _whole({count: reader.of(plan.day_alone, str(count), REGION_LOCAL) for count in DAY_ALONE_FLEETS}),
    )


def day_tables(reader: SectionReader) -> str:
    pooled, apart = _days(reader)
    alone = [(str(count // len(REGIONS)), *_row(runs)) for count, runs in apart.items()]
    return "\n".join(
        [
            table(("SLO", "pooled", "each region for its own peak", "saved"), _savings(pooled, apart)),
            table(("replicas, pooled", *_P90_HEAD), [(str(count), *_row(runs)) for count, runs in pooled.items()]),
            table(("replicas a region, apart", *_P90_HEAD), alone),
        ]
    )


def _whole(fleets: Mapping[int, list[Figures]]) -> dict[int, list[Figures]]:
    """Fleets of which every seed was played: fewer seeds would give another verdict."""
    return {count: runs for count, runs in fleets.items() if all(runs)}


def _row(runs: Sequence[Figures]) -> tuple[str, ...]:
    waits_s = [_worst_s(runs, (region,)) for region in REGIONS]
    return tuple(f"{wait_s:.2f}" if isfinite(wait_s) else NOTHING for wait_s in waits_s)


def _savings(
    pooled: Mapping[int, Sequence[Figures]], apart: Mapping[int, Sequence[Figures]]
) -> list[tuple[str, str, str, str]]:
    """Row for each SLO, with the replicas that meet it."""
    rows = []
    for slo_s in DAY_TTFT_P90_S:
        together = _fewest(pooled, REGIONS, slo_s)
        needs = [_fewest(apart, (region,), slo_s) for region in REGIONS]
        known = [need // len(REGIONS) for need in needs if need is not None]
        is_whole = together is not None and len(known) == len(needs)
        alone = f"{' + '.join(map(str, known))} = {sum(known)}" if len(known) == len(needs) else "none that was tried"
        saved = _saved(together, sum(known)) if together is not None and is_whole else NOTHING
        rows.append((f"{slo_s:g} s", "none that was tried" if together is None else str(together), alone, saved))
    return rows


def _saved(together: int, apart: int) -> str:
    share = 1 - together / apart
    return f"{share:.0%}" if share >= 0 else f"none: {-share:.0%} more"


def _fewest(fleets: Mapping[int, Sequence[Figures]], regions: Sequence[str], slo_s: float) -> int | None:
    """The smallest fleet for which all larger ones meet the SLO too: a fleet that meets it by chance does not count."""
    fewest = None
    for count in sorted(fleets, reverse=True):
        if not _meets(fleets[count], regions, slo_s):
            break
        fewest = count
    return fewest


def day_plot(reader: SectionReader) -> str:
    pooled, apart = _days(reader)
    curves = [
        Line("pooled", [(count, _worst_s(runs, REGIONS)) for count, runs in pooled.items()]),
        Line("apart", [(count, _worst_s(runs, REGIONS)) for count, runs in apart.items()]),
    ]
    limit_s = 2 * max(DAY_TTFT_P90_S)
    in_sight = [Line(each.name, [point for point in each.points if point[1] <= limit_s]) for each in curves]
    title = f"P90 of TTFT in the worst region, where it is up to {limit_s:g} s"
    return picture_file(lines(title, [each for each in in_sight if each.points], "replicas in all", "seconds"))


def _worst_s(runs: Sequence[Figures], regions: Sequence[str]) -> float:
    """The median seed's P90 in the worst of the regions."""
    return median(max(_p90_s(run["regions"][region]) for region in regions) for run in runs)


def _p90_s(region: Figures) -> float:
    """P90 of the TTFT in seconds; infinite where no request got a first token."""
    return float(region["ttft_ms"]["p90"]) / 1000 if region["ttft_ms"] else inf


def _meets(runs: Sequence[Figures], regions: Sequence[str], slo_s: float) -> bool:
    is_whole = all(run["regions"][region]["failed"] == 0 for run in runs for region in regions)
    return is_whole and _worst_s(runs, regions) <= slo_s
