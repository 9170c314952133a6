"""Tells whether a fault has had its effect: from the network's own counts whether it has changed the links that it
should, and from what the processes of the region struck have recorded whether they felt the rest. Pure.

It must never take an order for its effect: only packets that were lost, held up or overtaken count, and only records of
the processes themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from loadgen.hosts.shapes import Direction, LinkShape, LinkTable
from loadgen.hosts.wire_process import DirectionCounts, WireCounts
from loadgen.studies.wan.faults import NamesFault, WanFault

_CLOCK_OFF_S: Final = 240.0
"""Distance of a record's time from the run's beginning that its duration explains."""
_TWO: Final = 2


def unfelt(fault: WanFault, sound: LinkTable, struck: WireCounts, healed: WireCounts) -> Iterator[str]:
    """Yield the reasons why the fault cannot have been as it should, by the counts at its beginning and its end. Of a
    fault that changes no link, other records tell (`traces_of`)."""
    if not fault.changes_links:
        return
    shaped = fault.shaped(sound)
    felt = _between(struck, healed)
    changed = [way for way in shaped if shaped[way] != sound[way] or way in fault.forgets]
    for way in changed:
        if shaped[way].is_cut and way in felt and felt[way].carried:
            yield f"{felt[way].carried} packets from {way[0]} to {way[1]} crossed a link that is cut"
    if not any(way in felt and _is_felt(felt[way], sound[way]) for way in changed):
        yield "no packet was lost, held up or overtaken on the links that it changes"


@dataclass(frozen=True, slots=True)
class RegionTraces:
    """Records of the gateway of the region struck, and of the calls of its clients."""

    seconds_off: float
    """Largest distance of a time in its audit log from the run's beginning."""
    certificates_refused: int
    """Hosts that it refused because of the certificate that they showed."""
    restarts: int
    addresses: int
    """Addresses at which it has listened for clients."""
    own_calls: int
    """Calls of its clients that it was about to answer when the fault began."""


def missing_traces(fault: WanFault, traces: RegionTraces) -> Iterator[str]:
    """Yield the reasons why the fault cannot have been as it should, by what the region struck has recorded."""
    if abs(traces.seconds_off - abs(fault.clock_s)) > _CLOCK_OFF_S:
        yield f"a time in its audit log is {traces.seconds_off:.0f} s off, and not {abs(fault.clock_s):.0f} s"
    if fault.names is NamesFault.LYING and not traces.certificates_refused:
        yield "no gateway was led to a wrong one, and has refused its certificate"
    if fault.kills and not traces.restarts:
        yield "its gateway was not started again"
    if fault.moves and traces.addresses < _TWO:
        yield "its gateway has listened at one address only"
    if (fault.kills or fault.moves) and not traces.own_calls:
        yield "no client waited for its gateway when it stopped"


def _is_felt(counts: DirectionCounts, sound: LinkShape) -> bool:
    is_held_up = counts.delay_ms > counts.carried * (sound.delay_ms + sound.jitter_ms)
    return counts.lost > 0 or counts.overtaking > 0 or is_held_up


def _between(struck: WireCounts, healed: WireCounts) -> dict[Direction, DirectionCounts]:
    """Counts of the time between two others, of directions that had packets until its end."""
    before = {(each.source, each.destination): each for each in struck.directions}
    return {
        way: each if (early := before.get(way)) is None else _difference(early, each)
        for each in healed.directions
        for way in [(each.source, each.destination)]
    }


def _difference(early: DirectionCounts, late: DirectionCounts) -> DirectionCounts:
    return DirectionCounts(
        late.source, late.destination, late.carried - early.carried, late.lost - early.lost,
        late.overtaking - early.overtaking, late.delay_ms - early.delay_ms,
    )  # fmt: skip
