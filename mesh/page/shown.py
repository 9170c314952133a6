"""Rows of the page that gateways and controllers both have, so that the page shows them alike. Plain values; the
program that fills them in knows what they mean.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

ROWS_MAX = 500
"""Most rows of a table; beyond them the page says how many are left out."""
DECISIONS_SHOWN = 40

_Row = TypeVar("_Row")


class Health(StrEnum):
    WELL = "well"
    BUSY = "busy"
    """Working, with no capacity left."""
    DEGRADED = "degraded"
    """Working in part."""
    CLOSED = "closed"
    """Accepting no requests: drained, locked down or not ready."""
    DOWN = "down"
    UNKNOWN = "unknown"


class Note(msgspec.Struct, frozen=True):
    """Message that operators should see first."""

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
    """Replicas that would accept a request at once."""
    down: int = 0
    running: int = 0
    """Requests on the region's replicas, begun or not."""
    waiting: int = 0
    """Requests in the queues of the region's gateways."""

    def add(self, *, replicas: int, free: int, down: int = 0, running: int = 0) -> None:
        self.replicas += replicas
        self.free += free
        self.down += down
        self.running += running


class ForwardsShown(msgspec.Struct, frozen=True):
    """Forwards from one region to another."""

    origin: str
    target: str
    per_minute: float
    running: int = 0


class DecisionShown(msgspec.Struct, frozen=True):
    """Finished request, as described by the gateway that placed it."""

    gateway: str
    request: str
    age_ms: int
    """Milliseconds since the request arrived; clocks of two machines are never compared."""
    model: str = ""
    origin: str = ""
    """Gateway that forwarded the request there; empty where a client sent it."""
    outcome: str = ""
    region: str = ""
    """Region where the request ran, or was sent last."""
    forwarded: bool = False
    waited_ms: float | None = None
    first_token_ms: float | None = None
    words: str = ""


def shown_at(decision: DecisionShown, at_ms: int) -> dict[str, object]:
    """Row of the page, with the time of day in place of the age."""
    row: dict[str, object] = msgspec.to_builtins(decision)
    del row["age_ms"]
    return {**row, "at_ms": at_ms}


class SideShown(msgspec.Struct, frozen=True):
    """One gateway's knowledge of a request: its record, and a description in words."""

    request: dict[str, Any]
    headline: str
    sentence: str
    aside: str
    """Description of the request as forwarded, by the gateway that it was forwarded to."""


def health_of(each: Collection[Health]) -> Health:
    """Health of a region from that of its gateways: the one that they all have, well for a mix of well and busy,
    degraded for any other mix."""
    kinds = set(each)
    if len(kinds) < 2:
        return next(iter(kinds), Health.UNKNOWN)
    return Health.DEGRADED if kinds - {Health.WELL, Health.BUSY} else Health.WELL


def forwards_of(flows: Iterable[tuple[str, str, float, int]]) -> list[ForwardsShown]:
    """Forwards between regions, summed for each pair; forwards within a region are left out. `flows` are tuples of
    origin, target, forwards a minute, and forwards running."""
    sums: dict[tuple[str, str], tuple[float, int]] = {}
    for origin, target, per_minute, running in flows:
        if origin and target and origin != target:
            before = sums.get((origin, target), (0.0, 0))
            sums[origin, target] = before[0] + per_minute, before[1] + running
    found = (ForwardsShown(*ends, round(rate, 1), running) for ends, (rate, running) in sorted(sums.items()))
    return [each for each in found if each.per_minute or each.running]


def some_of(rows: Sequence[_Row]) -> dict[str, object]:
    return {"rows": rows[:ROWS_MAX], "left_out": max(0, len(rows) - ROWS_MAX)}
