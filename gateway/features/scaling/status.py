"""Scaling in `nightside gateway status`: wanted replicas, and pools that may not have as many."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from rich.table import Table

from gateway.features.status import StatusView, plain, table_of
from mesh.problems import Problem


class ScaledPoolView(msgspec.Struct, frozen=True):
    model: str
    pool: str
    wanted: int
    reason: str
    ready: int
    alone: int
    offered: float
    borrowed: float
    lent: float
    missing: int


class ScalingView(StatusView, frozen=True):
    """Wanted replicas of each pool."""

    pools: list[ScaledPoolView]
    webhook_fault: str

    def problems(self) -> Iterator[Problem]:
        for each in self.pools:
            if each.missing:
                text = f"pool {each.pool} of {each.model} needs {each.missing} replicas more than its maximum allows"
                yield Problem(text, "replicas_missing", f"{each.model}/{each.pool}", "NightsideReplicasMissing")
        if self.webhook_fault:
            text = f"calls of the scaling webhook fail: {self.webhook_fault}"
            yield Problem(text, "scaling_webhook_failing")

    def tables(self) -> Iterator[Table]:
        if not self.pools:
            return
        table = table_of(("Pool", "Model", "Reason"), ("Wanted", "Ready", "Alone", "Load", "Borrowed", "Lent"))
        for each in self.pools:
            loads = (f"{load:.1f}" for load in (each.offered, each.borrowed, each.lent))
            cells = (each.pool, each.model, each.reason, each.wanted, each.ready, each.alone, *loads)
            table.add_row(*map(plain, cells))
        yield table
