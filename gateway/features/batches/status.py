"""Batches in `nightside gateway status`: those that have not ended, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from rich.table import Table

from gateway.features.status import StatusView, plain, table_of
from mesh.problems import Problem


class BatchView(msgspec.Struct, frozen=True):
    """Batch that has not ended. Spans are seconds from now."""

    id: str
    tenant: str
    status: str
    lines: int
    done: int
    """Lines with a result."""
    expected_in_s: int | None
    """Time until the last line ends at the present rate; None where that cannot be told."""
    window_left_s: int


class BatchesView(StatusView, frozen=True):
    """Batches of a gateway that takes them."""

    batches: list[BatchView]
    left_out: int
    """Batches beyond those that are listed."""
    at_risk: int
    stopped: int

    def problems(self) -> Iterator[Problem]:
        if self.stopped:
            text = f"{self.stopped} batches met an internal error and wait for another try"
            yield Problem(text, "batches_stopped", runbook="NightsideBatchesStuck")
        if self.at_risk:
            text = f"{self.at_risk} batches would miss their window at the rate so far"
            yield Problem(text, "batches_at_risk", runbook="NightsideBatchesAtRisk")

    def tables(self) -> Iterator[Table]:
        if not self.batches:
            return
        table = table_of(("Batch", "Tenant", "Status"), ("Lines", "Done", "Expected in", "Window left"))
        for each in self.batches:
            spans = (_span(each.expected_in_s), _span(each.window_left_s))
            table.add_row(*map(plain, (each.id, each.tenant, each.status, each.lines, each.done, *spans)))
        if self.left_out:
            table.caption = f"and {self.left_out} more"
        yield table


def _span(seconds: int | None) -> str:
    return "unknown" if seconds is None else f"{seconds / 3600:.1f} h"
