"""Histories of disaggregated pools between the gateway that serves a pool and the one that serves it next.

They are held in memory only, and handed to the owner of the pool alone. Policies decide where they may be: that of the
pool's home, and that of the region in which they were recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

from msgspec import Struct

from gateway.core.kernel.residency import ResidencyPolicy, may_hold_records
from gateway.core.vocabulary import GatewayId, Place, RegionName
from mesh.control.pool_history import PoolHistory, history_fault

POOLS_MAX = 256
"""Most pools with a history here."""
PoolId = tuple[GatewayId, str]
"""Home of a pool, and its name there."""


class PoolMesh(Struct, frozen=True):
    """Stored state that histories depend on."""

    owners: Mapping[PoolId, GatewayId]
    """Gateway that serves each pool."""
    places: Mapping[GatewayId, Place]
    policies: Mapping[RegionName, ResidencyPolicy]
    """Policy in force in each region."""


class PoolHistories:
    """Newest history of each pool."""

    def __init__(self, place: Place | None) -> None:
        """`place` is the controller's; None: it takes no histories, since no policy can allow them here."""
        self.place = place
        self.withheld: dict[PoolId, str] = {}
        """Reason why the owner of a pool did not get its history, by pool; the last one."""
        self._kept: dict[PoolId, PoolHistory] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, sender: GatewayId, history: PoolHistory, mesh: PoolMesh) -> str:
        """Keep a history in place of the pool's last one. Returns the reason why it is refused; empty if it is kept."""
        pool = history.home, history.pool
        fault = history_fault(history) or self._fault_of_sender(sender, history, mesh)
        if not fault and self.place is not None and (why := _why_not_at(self.place, history, mesh)):
            self._kept.pop(pool, None)
            fault = f"{_named(pool)}: it may not be at the controller: {why}"
        if fault:
            return fault
        if pool not in self._kept and len(self._kept) >= POOLS_MAX:
            self._forget_all_but(mesh.owners.keys())
            if len(self._kept) >= POOLS_MAX:
                return f"{_named(pool)}: {POOLS_MAX} pools have one here already"
        self._kept[pool] = history
        return ""

    def due(self, gateway_id: GatewayId, held: AbstractSet[PoolId], mesh: PoolMesh) -> Iterator[PoolHistory]:
        """Yield the histories of pools that the gateway serves and that are not among `held`."""
        for pool, history in list(self._kept.items()):
            if mesh.owners.get(pool) != gateway_id or pool in held:
                continue
            place = mesh.places.get(gateway_id)
            why = f"{gateway_id} is not registered" if place is None else _why_not_at(place, history, mesh)
            self.withheld.pop(pool, None)
            if why:
                self.withheld[pool] = f"{_named(pool)}: it may not be at {gateway_id}: {why}"
            else:
                yield history

    def _fault_of_sender(self, sender: GatewayId, history: PoolHistory, mesh: PoolMesh) -> str:
        pool = history.home, history.pool
        if self.place is None:
            return f"{_named(pool)}: this controller takes none"
        if history.recorded_by != sender:
            return f"{_named(pool)}: it is another gateway's, {history.recorded_by}"
        if (owner := mesh.owners.get(pool)) != sender:
            return f"{_named(pool)}: {sender} does not serve the pool, {owner or 'and no gateway'} does"
        return ""

    def _forget_all_but(self, pools: AbstractSet[PoolId]) -> None:
        """Drop the histories of pools that are not registered any more."""
        for pool in self._kept.keys() - pools:
            del self._kept[pool]
            self.withheld.pop(pool, None)


def _why_not_at(place: Place, history: PoolHistory, mesh: PoolMesh) -> str:
    """Reason why a history may not be at a place; empty if it may. The region where a pool's replicas are at home has
    processed its requests, and so may hold what they left, wherever the gateway was that served them."""
    for gateway_id in dict.fromkeys((history.home, history.recorded_by)):
        region = mesh.places[gateway_id].region if gateway_id in mesh.places else None
        policy = None if region is None else mesh.policies.get(region)
        if policy is None:
            return f"the policy of the region of {gateway_id} is not known"
        if place == mesh.places[history.home]:
            continue
        if not (verdict := may_hold_records(policy, place)).allowed:
            return f"policy of {policy.place.region}: {verdict.why}"
    return ""


def _named(pool: PoolId) -> str:
    home, name = pool
    return f"history of pool {name} of {home}"
