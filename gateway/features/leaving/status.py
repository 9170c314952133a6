"""Replicas that leave in `nightside gateway status`, and on the page."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from rich.table import Table

from gateway.features.status import StatusView, plain, table_of
from mesh.page.rows import ColumnShown, TableShown
from mesh.problems import Problem

_COLUMNS = (
    ColumnShown("Replica"),
    ColumnShown("Announced by"),
    ColumnShown("Leaves by (UTC)", "time"),
    ColumnShown("Running", "number"),
)


class LeavingReplica(msgspec.Struct, frozen=True):
    """Replica that was announced to leave and has not left."""

    replica: str
    leave_by: str
    """Wall time of its end."""
    by: str
    """Name of the operator whose announcement is in force, or `kubernetes`; empty where operators have no names."""
    in_flight: int
    """Requests of this gateway that still run there."""
    is_overdue: bool
    """The end has passed, and the engine still answers."""


class LeavingView(StatusView, frozen=True):
    """Replicas that leave."""

    replicas: list[LeavingReplica]

    def problems(self) -> Iterator[Problem]:
        for each in self.replicas:
            if each.is_overdue:
                text = f"replica {each.replica} was to leave by {each.leave_by}, and still answers: it is sent nothing"
                yield Problem(text, "replica_overdue", each.replica, "NightsideReplicaOverdue")

    def tables(self) -> Iterator[Table]:
        if self.replicas:
            table = table_of(("Leaves", "By", "Announced by"), ("Running",))
            for each in self.replicas:
                table.add_row(*map(plain, (each.replica, each.leave_by, each.by, each.in_flight)))
            yield table


def page_table(view: LeavingView, leave_by_ms: dict[str, int]) -> TableShown | None:
    """Table for the page; None while no replica leaves. `leave_by_ms`: end of each replica, in ms since 1970."""
    rows = [(each.replica, each.by, leave_by_ms[each.replica], each.in_flight) for each in view.replicas]
    return TableShown("leaving", "Leaving replicas", "No replica leaves.", _COLUMNS, rows) if rows else None
