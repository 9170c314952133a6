"""Histories of disaggregated pools between the gateways that served a pool and the one that serves it next.

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

HISTORIES_MAX = 512
"""Most histories here."""
OF_ONE_GATEWAY_MAX = 64
"""Most histories here that one gateway recorded."""
PoolId = tuple[GatewayId, str]
"""Home of a pool, and its name there."""
HistoryId = tuple[PoolId, GatewayId]
"""Pool, and the gateway that recorded the history."""


class PoolMesh(Struct, frozen=True):
    """Stored state that histories depend on."""

    owners: Mapping[PoolId, GatewayId | None]
    """Gateway that serves each registered pool; None: no gateway may."""
    places: Mapping[GatewayId, Place]
    policies: Mapping[RegionName, ResidencyPolicy]
    """Policy in force in each region."""


class PoolHistories:
    """Newest history of each pool by each gateway that recorded one."""

    def __init__(self, place: Place | None) -> None:
        """`place` is the controller's; None: it takes no histories, since no policy can allow them here."""
        self.place = place
        self._kept: dict[HistoryId, PoolHistory] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, sender: GatewayId, history: PoolHistory, mesh: PoolMesh) -> str:
        """Keep a history in place of the sender's last one of the pool. Returns the reason why it is refused; empty if
        it is kept."""
        self.look_again(mesh)
        key = (history.home, history.pool), sender
        if fault := history_fault(history) or self._fault_of_sender(sender, history, mesh):
            return fault
        if (known := self._kept.get(key)) is not None and history.added < known.added:
            return f"{_named(history)}: {sender} has recorded {history.added} requests, and {known.added} before"
        if known is None and (full := self._why_full(sender)):
            return f"{_named(history)}: {full}"
        self._kept[key] = history
        return ""

    def look_again(self, mesh: PoolMesh) -> None:
        """Drop the histories of pools that are not registered any more, and those that may not be here any more."""
        for key, history in list(self._kept.items()):
            if key[0] not in mesh.owners or self._why_not_here(history, mesh):
                del self._kept[key]

    def due(self, gateway_id: GatewayId, held: AbstractSet[HistoryId], mesh: PoolMesh) -> Iterator[PoolHistory]:
        """Yield the histories of pools that the gateway serves and that are not among `held`. Its own are among them,
        since it may have lost them."""
        for key, history in list(self._kept.items()):
            if (
                mesh.owners.get(key[0]) == gateway_id
                and key not in held
                and not _why_not_with(gateway_id, history, mesh)
            ):
                yield history

    def withheld(self, mesh: PoolMesh) -> list[str]:
        """Histories that the owners of their pools do not get, with reasons."""
        found = []
        for (pool, _), history in self._kept.items():
            owner = mesh.owners.get(pool)
            if owner is not None and (why := _why_not_with(owner, history, mesh)):
                found.append(f"{_named(history)}: it may not be at {owner}: {why}")
        return sorted(found)

    def _fault_of_sender(self, sender: GatewayId, history: PoolHistory, mesh: PoolMesh) -> str:
        if self.place is None:
            return f"{_named(history)}: this controller takes none"
        if history.recorded_by != sender:
            return f"{_named(history)}: it is another gateway's, {history.recorded_by}"
        if (owner := mesh.owners.get((history.home, history.pool))) != sender:
            return f"{_named(history)}: {sender} does not serve the pool, {owner or 'and no gateway'} does"
        why = self._why_not_here(history, mesh)
        return f"{_named(history)}: it may not be at the controller: {why}" if why else ""

    def _why_not_here(self, history: PoolHistory, mesh: PoolMesh) -> str:
        return "it has no region" if self.place is None else _why_not_at(self.place, history, mesh)

    def _why_full(self, sender: GatewayId) -> str:
        if sum(recorder == sender for _, recorder in self._kept) >= OF_ONE_GATEWAY_MAX:
            return f"{OF_ONE_GATEWAY_MAX} histories of {sender} are here already"
        return f"{HISTORIES_MAX} are here already" if len(self._kept) >= HISTORIES_MAX else ""


def _why_not_with(gateway_id: GatewayId, history: PoolHistory, mesh: PoolMesh) -> str:
    place = mesh.places.get(gateway_id)
    return "it is not registered" if place is None else _why_not_at(place, history, mesh)


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


def _named(history: PoolHistory) -> str:
    return f"history of pool {history.pool} of {history.home}"
