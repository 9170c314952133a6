"""Conversion between the history of a pool here and the one that travels to the gateway which serves the pool next. It
keeps no secret and sends nothing.
"""

from __future__ import annotations

from gateway.core.features.disaggregated.events import DecodeHistoryHandedOver
from gateway.core.features.disaggregated.predictors.history import Ended, Snapshot
from gateway.core.vocabulary import GatewayId, PoolName
from mesh.control.pool_history import ROWS_MAX, PoolHistory, packed

_AWAY = "@"
"""Stands between a pool's name and its home in the name that an adopter gives to the pool."""


def home_of(name: PoolName, gateway_id: GatewayId) -> tuple[GatewayId, str]:
    """Home of a pool that this gateway serves, and the pool's name there."""
    pool, _, home = name.rpartition(_AWAY)
    return (GatewayId(home), pool) if pool else (gateway_id, name)


def name_of(history: PoolHistory, gateway_id: GatewayId) -> PoolName:
    """Name that a pool has at this gateway."""
    return PoolName(history.pool if history.home == gateway_id else f"{history.pool}{_AWAY}{history.home}")


def travelling(snapshot: Snapshot, gateway_id: GatewayId, home: GatewayId, pool: str, key_id: str) -> PoolHistory:
    """Newest requests of a pool's history at this gateway, for the pool's next gateway."""
    ended = snapshot.ended[-ROWS_MAX:]
    return PoolHistory(
        home=home,
        pool=pool,
        recorded_by=gateway_id,
        key_id=key_id,
        added=snapshot.added,
        first_away=snapshot.added if home == gateway_id else min(snapshot.first_away, snapshot.added),
        prompt_keys=packed([each.prompt_key for each in ended], "prompt_keys"),
        prompt_tokens=packed([each.prompt_tokens for each in ended], "prompt_tokens"),
        output_tokens=packed([each.output_tokens for each in ended], "output_tokens"),
        after=packed([each.after for each in ended], "after"),
    )


def handed_over(
    history: PoolHistory, name: PoolName, gateway_id: GatewayId, key_id: str, *, is_empty: bool, now_ns: int
) -> DecodeHistoryHandedOver | None:
    """Event for the core of a gateway that gets a history without faults; None where the gateway sent it itself and
    still has its own. At home, only requests recorded away are new, unless the home has lost its own (`is_empty`). An
    adopter takes the history as it is. Keys made with another secret are left out, and requests count as ended now,
    since clocks of two machines are not compared."""
    if history.recorded_by == gateway_id and not is_empty:
        return None
    ended = tuple(Ended(*row, now_ns) for row in history.rows(key_id))
    is_whole = history.home != gateway_id or is_empty
    return DecodeHistoryHandedOver(name, ended, history.added, history.first_away, is_whole=is_whole)
