"""The rows of the page that a gateway and a controller both have, so that the page draws them alike. Plain values:
whoever fills them in knows what they mean.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

ROWS_MAX = 500
"""Of a table; whoever has more is told how many are left out."""
DECISIONS_SHOWN = 40

_Row = TypeVar("_Row")


class Health(StrEnum):
    WELL = "well"
    BUSY = "busy"
    """It works, and has all that it may be given."""
    DEGRADED = "degraded"
    """A part of it does not work."""
    CLOSED = "closed"
    """It takes nothing: it is drained, locked down or not ready."""
    DOWN = "down"
    UNKNOWN = "unknown"


class Note(msgspec.Struct, frozen=True):
    """What somebody should know before all else."""

    level: str
    """`bad`, `warn` or `info`."""
    text: str


class RegionShown(msgspec.Struct):
    region: str
    jurisdiction: str
    is_here: bool = False
    health: Health = Health.UNKNOWN
    why: str = ""
    latitude: float | None = None
    longitude: float | None = None
    gateways: list[str] = []
    replicas: int = 0
    free: int = 0
    """Of these, those that would take a request now."""
    down: int = 0
    running: int = 0
    """On its replicas, begun or not."""
    waiting: int = 0
    """In the queues of its gateways."""

    def add(self, *, replicas: int, free: int, down: int = 0, running: int = 0) -> None:
        self.replicas += replicas
        self.free += free
        self.down += down
        self.running += running


class ForwardsShown(msgspec.Struct, frozen=True):
    """From one region to another."""

    origin: str
    target: str
    per_minute: float
    running: int = 0


class DecisionShown(msgspec.Struct, frozen=True):
    """One request that is finished, as the gateway tells it that decided about it."""

    gateway: str
    request: str
    age_ms: int
    """Since it arrived: clocks of two machines are never compared."""
    model: str = ""
    origin: str = ""
    """The gateway that forwarded it there; empty for a client's."""
    outcome: str = ""
    region: str = ""
    """Where it ran, or was sent last."""
    forwarded: bool = False
    waited_ms: float | None = None
    first_token_ms: float | None = None
    words: str = ""


def shown_at(decision: DecisionShown, at_ms: int) -> dict[str, object]:
    """As a row, with the time of day in place of its age."""
    row: dict[str, object] = msgspec.to_builtins(decision)
    del row["age_ms"]
    return {**row, "at_ms": at_ms}


class SideShown(msgspec.Struct, frozen=True):
    """What one gateway knows of a request: its record, and that in words."""

    request: dict[str, Any]
    headline: str
    sentence: str
    aside: str
    """The same as told by a gateway that it was forwarded to."""


def health_of(each: Collection[Health]) -> Health:
    """Of a region, from that of its gateways: what some of them lack makes it degraded, what all of them lack closes
    it."""
    kinds = set(each)
    if len(kinds) < 2:
        return next(iter(kinds), Health.UNKNOWN)
    return Health.DEGRADED if kinds - {Health.WELL, Health.BUSY} else Health.WELL


def forwards_of(flows: Iterable[tuple[str, str, float, int]]) -> list[ForwardsShown]:
    """Those between the same two regions together; what stays in its region is no arrow. (from, to, a minute, now)"""
    sums: dict[tuple[str, str], tuple[float, int]] = {}
    for origin, target, per_minute, running in flows:
        if origin and target and origin != target:
            before = sums.get((origin, target), (0.0, 0))
            sums[origin, target] = before[0] + per_minute, before[1] + running
    found = (ForwardsShown(*ends, round(rate, 1), running) for ends, (rate, running) in sorted(sums.items()))
    return [each for each in found if each.per_minute or each.running]


def some_of(rows: Sequence[_Row]) -> dict[str, object]:
    return {"rows": rows[:ROWS_MAX], "left_out": max(0, len(rows) - ROWS_MAX)}
