"""Histories of pools as they travel, for tests."""

from __future__ import annotations

from gateway.core.features.disaggregated.predictors.history import Ended, Snapshot
from gateway.core.vocabulary import GatewayId
from gateway.features.disaggregated.handing_over import travelling
from mesh.control.pool_history import PoolHistory


def history_of(
    *outputs: int, by: str = "us-1", home: str = "us-1", added: int | None = None, meanwhile: int = 0
) -> PoolHistory:
    """History of pool `pd` of `home`, of answers with these lengths, as the gateway `by` sends it; `meanwhile` others
    ended while each of them ran."""
    first = (len(outputs) if added is None else added) - len(outputs)
    ended = [Ended(7, 10, output, max(0, number - meanwhile), 0) for number, output in enumerate(outputs, start=first)]
    snapshot = Snapshot(tuple(ended), first + len(outputs))
    return travelling(snapshot, GatewayId(by), GatewayId(home), "pd")
