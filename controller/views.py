"""The stored state, complete, at one moment: everything sent to gateways comes from one such view."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from controller.registry import RegisteredReplica, Registry
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import ControlVersion, GatewayId, RegionName, ReplicaId
from mesh.control.vocabulary import NO_GATEWAY, ReplicaOwner
from mesh.naming.tree import RecordTree


@dataclass(frozen=True)
class View:
    """Stored state at one moment. It never changes."""

    version: ControlVersion
    registry: Registry
    owners: Mapping[ReplicaId, GatewayId]
    policies: Mapping[RegionName, ResidencyPolicy]
    """Last policy in force in each region."""
    records: RecordTree | None

    def owner(self, replica: RegisteredReplica) -> GatewayId | None:
        """Return the owner of a replica: an empty id for one that is drained or removed, None for one that no gateway
        may serve."""
        if not replica.is_served:
            return NO_GATEWAY
        owner = self.owners.get(replica.replica_id)
        return owner if owner in self.registry.gateways else None

    @cached_property
    def owned(self) -> Mapping[GatewayId, list[RegisteredReplica]]:
        """Replicas by owner, computed once for all readers."""
        owned: dict[GatewayId, list[RegisteredReplica]] = {}
        for replica in self.registry.replicas.values():
            owner = self.owner(replica)
            if owner is not None:
                owned.setdefault(owner, []).append(replica)
        return owned

    @cached_property
    def pool_owners(self) -> Mapping[tuple[GatewayId, str], GatewayId | None]:
        """Owner of each disaggregated pool, by the pool's home and its name there; None for one that no gateway may
        serve."""
        found: dict[tuple[GatewayId, str], GatewayId | None] = {}
        for each in self.registry.replica_entries:
            if each.pool and found.get((each.home, each.pool)) is None:
                owner = self.owners.get(each.replica_id)
                found[each.home, each.pool] = owner if owner in self.registry.gateways else None
        return found

    @cached_property
    def away(self) -> tuple[ReplicaOwner, ...]:
        """Replicas that a gateway other than their home serves, or that an order takes out of service. A replica that
        no gateway may serve is not among them: its home goes on with it for as long as it can."""
        return tuple(
            ReplicaOwner(each.replica_id, each.home, owner)
            for owner, replicas in self.owned.items()
            for each in replicas
            if owner != each.home and (owner != NO_GATEWAY or each.is_announced)
        )


class ViewFeed:
    """The newest view, for all its followers. A slow follower misses the views in between."""

    def __init__(self) -> None:
        self.newest: View | None = None
        self._changed = asyncio.Event()

    def put(self, view: View) -> None:
        assert self.newest is None or view.version.is_newer_than(self.newest.version), "versions rise"
        self.newest = view
        self._changed.set()
        self._changed = asyncio.Event()

    async def other_than(self, seen: View | None, wait_max_s: float) -> View | None:
        """Return the newest view once it is not `seen`, or after `wait_max_s`."""
        if self.newest is seen:
            try:
                async with asyncio.timeout(wait_max_s):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return self.newest
