"""Tells from the network's own counts whether a fault has changed the links that it should. Pure.

It must never take an order for its effect: only packets that were lost, held up or overtaken count.
"""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.hosts.shapes import Direction, LinkShape, LinkTable
from loadgen.hosts.wire_process import DirectionCounts, WireCounts
from loadgen.studies.wan.faults import WanFault


def unfelt(fault: WanFault, sound: LinkTable, struck: WireCounts, healed: WireCounts) -> Iterator[str]:
    """Yield the reasons why the fault cannot have been as it should, by the counts at its beginning and its end. There
    is nothing to be seen of a fault that changes no link."""
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
