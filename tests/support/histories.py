"""Histories of pools as they travel, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.features.disaggregated.predictors.history import Ended, Snapshot
from gateway.core.vocabulary import GatewayId
from gateway.features.disaggregated.handing_over import travelling
from mesh.control.pool_history import PoolHistory

KEY_ID = "aa"


def history_of(
    *outputs: int,
    by: str = "us-1",
    home: str = "us-1",
    added: int | None = None,
    first_away: int = 0,
    keys: Sequence[int] = (),
    key_id: str = KEY_ID,
) -> PoolHistory:
    """History of pool `pd` of `home`, of answers with these lengths, as the gateway `by` sends it."""
    keys = keys or [7] * len(outputs)
    first = (len(outputs) if added is None else added) - len(outputs)
    ended = [
        Ended(key, 10, output, first + number, 0)
        for number, (key, output) in enumerate(zip(keys, outputs, strict=True))
    ]
    snapshot = Snapshot(tuple(ended), first + len(outputs), first_away)
    return travelling(snapshot, GatewayId(by), GatewayId(home), "pd", key_id)
