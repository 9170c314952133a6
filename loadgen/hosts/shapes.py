"""Shapes of the links between hosts: delay, jitter, loss, bandwidth, size limit and cuts. Pure values, and changes of
whole tables of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

Site = str
"""Name of a host, or of the place of some clients, on the emulated network."""
Direction = tuple[Site, Site]
"""Source and destination of packets."""


class LinkShape(Struct, frozen=True):
    """Shape of one direction of a link."""

    delay_ms: float = 0.0
    """Time of a packet on its way, besides its queue."""
    jitter_ms: float = 0.0
    """Greatest deviation from `delay_ms`, uniformly distributed."""
    reorders: bool = False
    """Jitter lets packets overtake each other."""
    loss: float = 0.0
    """Share of packets that are lost, each by itself."""
    rate_kbit_s: float | None = None
    """Bandwidth; None: unlimited."""
    queue_ms: float = 500.0
    """Longest wait for the bandwidth; packets beyond it are lost."""
    packet_max_bytes: int | None = None
    """Size beyond which packets vanish, and no ICMP message says so; None: none do."""
    is_cut: bool = False
    """All packets are lost."""


LinkTable = Mapping[Direction, LinkShape]
"""Shape of each direction of each link."""
LinkChange = Callable[[LinkTable], LinkTable]


def unchanged(table: LinkTable) -> LinkTable:
    return table


def with_shape(directions: Iterable[Direction], **fields: object) -> LinkChange:
    """Change that sets fields of some directions. Raises KeyError for a direction that a table does not have."""
    chosen = tuple(directions)

    def change(table: LinkTable) -> LinkTable:
        return {**table, **{each: replace(table[each], **fields) for each in chosen}}

    return change


def slowed(directions: Iterable[Direction], factor: float) -> LinkChange:
    """Change that multiplies the delay of some directions."""
    chosen = tuple(directions)

    def change(table: LinkTable) -> LinkTable:
        slow = {each: replace(table[each], delay_ms=factor * table[each].delay_ms) for each in chosen}
        return {**table, **slow}

    return change


def both_ways(one: Iterable[Site], others: Iterable[Site]) -> tuple[Direction, ...]:
    """Directions between each of some sites and each of some others."""
    there = tuple(others)
    return tuple(way for a in one for b in there if a != b for way in ((a, b), (b, a)))


def between(sites: Iterable[Site]) -> tuple[Direction, ...]:
    """Directions between any two of the sites."""
    every = tuple(sites)
    return tuple((a, b) for a in every for b in every if a != b)


def from_each(sources: Iterable[Site], destinations: Iterable[Site]) -> tuple[Direction, ...]:
    """Directions from each of some sites to each of some others."""
    there = tuple(destinations)
    return tuple((a, b) for a in sources for b in there if a != b)
