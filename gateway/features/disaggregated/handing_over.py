"""Conversion between the history of a pool here and the ones that travel, and the requests of all of them together,
which predictors are fitted to. It sends and stores nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from gateway.core.features.disaggregated.predictors.estimator import UNKNOWN_PROMPT
from gateway.core.features.disaggregated.predictors.history import Ended, Snapshot
from gateway.core.vocabulary import GatewayId, PoolName
from mesh.control.pool_history import ROWS_MAX, PoolHistory, packed

RECORDERS_MAX = 8
"""Most gateways with a history of one pool that is kept here; beyond it, the one that came first is dropped."""
_AWAY = "@"
"""Stands between a pool's name and its home in the name that an adopter gives to the pool."""


def home_of(name: PoolName, gateway_id: GatewayId) -> tuple[GatewayId, str]:
    """Home of a pool that this gateway serves, and the pool's name there."""
    pool, _, home = name.rpartition(_AWAY)
    return (GatewayId(home), pool) if pool else (gateway_id, name)


def name_of(history: PoolHistory, gateway_id: GatewayId) -> PoolName:
    """Name that a pool has at this gateway."""
    return PoolName(history.pool if history.home == gateway_id else f"{history.pool}{_AWAY}{history.home}")


def travelling(snapshot: Snapshot, gateway_id: GatewayId, home: GatewayId, pool: str) -> PoolHistory:
    """Newest requests of a pool that this gateway has recorded, for the pool's next gateway."""
    rows = list(_overlaps(snapshot))[-ROWS_MAX:]
    return PoolHistory(
        home=home,
        pool=pool,
        recorded_by=gateway_id,
        added=snapshot.added,
        prompt_tokens=packed([each.prompt_tokens for each, _ in rows]),
        output_tokens=packed([each.output_tokens for each, _ in rows]),
        ended_meanwhile=packed([min(meanwhile, ROWS_MAX) for _, meanwhile in rows]),
    )


class Arrived(Struct, frozen=True):
    """History without faults that has come from a controller."""

    history: PoolHistory
    came_ns: int
    """Time of its arrival, which stands for the end of its requests: clocks of two machines are not compared."""

    def snapshot(self) -> Snapshot:
        """History with the numbers that its recorder gave to the requests, whose prompts are unknown here."""
        rows = self.history.rows()
        first = self.history.added - len(rows)
        ended = (
            Ended(UNKNOWN_PROMPT, prompt, output, max(0, first + index - meanwhile), self.came_ns)
            for index, (prompt, output, meanwhile) in enumerate(rows)
        )
        return Snapshot(tuple(ended), self.history.added)


class ArrivedHistories:
    """Histories of one pool by the gateway that recorded them, in memory only."""

    def __init__(self) -> None:
        self._arrived: dict[GatewayId, Arrived] = {}

    def take(self, history: PoolHistory, now_ns: int) -> bool:
        """Keep a history in place of the last one of the same recorder. Returns False, and keeps the one here, unless
        it has more requests."""
        known = self._arrived.get(history.recorded_by)
        if known is not None and history.added <= known.history.added:
            return False
        self._arrived[history.recorded_by] = Arrived(history, now_ns)
        if len(self._arrived) > RECORDERS_MAX:
            del self._arrived[next(iter(self._arrived))]
        return True

    def pop(self, recorder: GatewayId) -> Arrived | None:
        """Remove the history of one recorder, and return it."""
        return self._arrived.pop(recorder, None)

    def all(self) -> tuple[Arrived, ...]:
        return tuple(self._arrived.values())


def with_arrived(own: Snapshot, arrived: Sequence[Arrived], ended_max: int) -> Snapshot:
    """Newest requests of a pool that this gateway or another one has recorded, in order of ending, renumbered. A
    history that came from elsewhere counts as ended when it came."""
    if not arrived:
        return own
    snapshots = (*(each.snapshot() for each in arrived), own)
    rows = sorted((row for each in snapshots for row in _overlaps(each)), key=lambda row: row[0].ended_ns)[-ended_max:]
    added = sum(each.added for each in snapshots)
    first = added - len(rows)
    ended = (
        Ended(each.prompt_key, each.prompt_tokens, each.output_tokens, max(0, first + index - meanwhile), each.ended_ns)
        for index, (each, meanwhile) in enumerate(rows)
    )
    return Snapshot(tuple(ended), added)


def _overlaps(snapshot: Snapshot) -> Iterator[tuple[Ended, int]]:
    """Yield each request with the number of others that ended between its admission and its end."""
    for number, each in enumerate(snapshot.ended, start=snapshot.first):
        yield each, max(0, number - each.after)
