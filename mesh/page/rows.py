"""Rows of the page that gateways and controllers both have, so that the page shows them alike. Plain values; the
program that fills them in knows what they mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

ROWS_MAX = 500
"""Most rows of a table; beyond them the page says how many are left out."""
DECISIONS_SHOWN = 40
MARKED_SHOWN = 20
"""Decisions shown of each mark beyond the latest ones."""
SLOW_MS = 2_000
"""Milliseconds to the first token, or to the first placement, beyond which a request counts as slow."""

_Row = TypeVar("_Row")


class Health(StrEnum):
    HEALTHY = "healthy"
    BUSY = "busy"
    """Working, with no capacity left."""
    DEGRADED = "degraded"
    """Working in part."""
    CLOSED = "closed"
    """Accepting no requests: drained, locked down or not ready."""
    DOWN = "down"
    UNKNOWN = "unknown"


class DecisionMark(StrEnum):
    """Property of a decision that operators filter by."""

    FAILED = "failed"
    """Failed or expired."""
    SLOW = "slow"
    REFUSED = "refused"
    """Rejected by a gateway, at admission or later."""
    RESUMED = "resumed"
    FORWARDED = "forwarded"


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
    slots: int = 0
    """Requests that the engines run at once, of the replicas for which that is known."""
    slots_used: int = 0
    kv: float | None = None
    """Mean share of the KV cache in use; None where it is not known."""
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
    target: str = ""
    """Gateway that it was forwarded to; empty where it was not."""
    marks: list[DecisionMark] = []
    waited_ms: float | None = None
    first_token_ms: float | None = None
    words: str = ""
    hops: list[DecisionShown] = []
    """Same request at the gateways that it was forwarded to, as these describe it."""


class ColumnShown(msgspec.Struct, frozen=True):
    """Column of a feature's table."""

    name: str
    kind: str = ""
    """`number`, `time` for milliseconds since 1970, or empty for text. Figures and times may be None."""


class TableShown(msgspec.Struct, frozen=True):
    """Table of a feature, which says itself what it shows. The first cell of a row is its key."""

    name: str
    title: str
    empty: str
    """Sentence in place of a table without rows."""
    columns: Sequence[ColumnShown]
    rows: Sequence[Sequence[str | int | None]]
    left_out: int = 0


def shown_at(decision: DecisionShown, at_ms: int) -> dict[str, object]:
    """Row of the page, with the time in place of the age."""
    row: dict[str, object] = msgspec.to_builtins(decision)
    row["hops"] = [{**msgspec.to_builtins(hop), "age_ms": None} for hop in decision.hops]
    del row["age_ms"]
    return {**row, "at_ms": at_ms}


def joined(rows: Iterable[DecisionShown]) -> list[DecisionShown]:
    """Both ends of each forward in one row: that of the gateway that a client asked, with those of the gateways behind
    it. A row whose other end is unknown stays by itself."""
    by_request: dict[str, list[DecisionShown]] = {}
    for row in rows:
        by_request.setdefault(row.request, []).append(row)
    return [each for group in by_request.values() for each in _joined(group)]


def _joined(group: list[DecisionShown]) -> list[DecisionShown]:
    """Rows of one request id. Several clients may use the same id: only gateways that name each other are joined."""
    found = []
    for first in (each for each in group if not each.origin):
        hops = [each for each in group if each.origin == first.gateway != each.gateway]
        marks = [mark for mark in DecisionMark if any(mark in each.marks for each in (first, *hops))]
        found.append(msgspec.structs.replace(first, hops=hops, marks=marks))
    told = {id(hop) for each in found for hop in each.hops}
    return found + [each for each in group if each.origin and id(each) not in told]


def chosen(rows: Iterable[DecisionShown]) -> list[DecisionShown]:
    """Latest rows, and of each mark the latest ones beyond them. `rows` are sorted, newest first."""
    counts: Counter[DecisionMark] = Counter()
    kept = []
    for index, row in enumerate(rows):
        if index < DECISIONS_SHOWN or any(counts[mark] < MARKED_SHOWN for mark in row.marks):
            kept.append(row)
            counts.update(row.marks)
    return kept


class SideShown(msgspec.Struct, frozen=True):
    """One gateway's knowledge of a request: its record, and a description in words."""

    request: dict[str, Any]
    headline: str
    sentence: str
    aside: str
    """Description of the request as forwarded, by the gateway that it was forwarded to."""


def health_of(each: Collection[Health]) -> Health:
    """Health of a region from that of its gateways: the one that they all have, healthy for a mix of healthy and busy,
    degraded for any other mix."""
    kinds = set(each)
    if len(kinds) < 2:
        return next(iter(kinds), Health.UNKNOWN)
    return Health.DEGRADED if kinds - {Health.HEALTHY, Health.BUSY} else Health.HEALTHY


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
