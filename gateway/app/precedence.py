"""Keeps what the region file says, what a controller says and what peers say of it apart, and puts in force what they
come to, whenever one of them changes: none of them ever undoes another.

The rules are those of docs/decisions/0006-a-controller-beside-the-road.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from gateway.config.orders import Orders, OrdersRefused, away_from, read_orders, without_orders
from gateway.config.sections import GatewayConfig
from gateway.core.regions import RegionTable
from gateway.core.vocabulary import ControlVersion
from gateway.ground.control.vocabulary import Ownership, Snapshot

Apply = Callable[[GatewayConfig, Orders], None]
"""Puts both in force, at once. Raises ConfigError, and has done nothing then."""


class Precedence:
    """What one gateway serves by."""

    def __init__(self, local: GatewayConfig, regions: RegionTable | None) -> None:
        self.local = local
        """What the region file says."""
        self.regions = regions
        """The operators' table, as the region's policy has it; None while there has been no usable one."""
        self.snapshot: Snapshot | None = None
        """What a controller said last, as far as it was taken."""
        self.orders = without_orders(local, regions)
        """What the two come to."""
        self.hearsay = Ownership()
        """What a peer said since then. It counts as long as it is newer than the snapshot."""
        self._apply: Apply | None = None

    def restore(self, snapshot: Snapshot) -> None:
        """Begin with it, before anything is in force. Raises OrdersRefused."""
        self.orders = read_orders(snapshot, self.local, self.regions)
        self.snapshot = snapshot

    def start(self, apply: Apply) -> None:
        """What `orders` says is in force now; changes go to `apply`."""
        self._apply = apply

    @property
    def version(self) -> ControlVersion:
        return ControlVersion() if self.snapshot is None else self.snapshot.version

    @property
    def ownership(self) -> Ownership:
        """What we tell peers: never what other peers told us."""
        return Ownership() if self.snapshot is None else Ownership(self.snapshot.version, self.snapshot.away)

    @property
    def away(self) -> frozenset[str]:
        """Ids of what is left to others, whoever says so."""
        return self._away(self.local, self.orders)

    def would_be_news(self, version: ControlVersion) -> bool:
        return version.is_newer_than(self.version) and version.is_newer_than(self.hearsay.version)

    async def reload(self, local: GatewayConfig) -> None:
        """The region file says something else. Raises ConfigError, and nothing has changed then."""
        await self._come_to(local=local)

    async def know(self, regions: RegionTable) -> None:
        """The operators' table says something else. Raises ConfigError, and nothing has changed then."""
        if regions != self.regions:
            await self._come_to(regions=regions)

    async def take(self, snapshot: Snapshot) -> None:
        """A controller says something else. Raises ConfigError, and nothing has changed then."""
        self._refuse_older(snapshot)
        if snapshot != self.snapshot:
            await self._come_to(snapshot=snapshot)
        if not self.hearsay.version.is_newer_than(snapshot.version):
            self.hearsay = Ownership()

    def _refuse_older(self, snapshot: Snapshot) -> None:
        if self.version.is_newer_than(snapshot.version):
            raise OrdersRefused(f"it is older than {self.version.term}.{self.version.version}, which is in force")

    def hear(self, ownership: Ownership) -> None:
        """A peer knows of newer owners: it can only take replicas from us, and only until a controller says something
        as new. A controller that says nothing new, or something older, may know less than the peer."""
        before, self.hearsay = self.away, ownership
        if self.away != before:
            self._put(self.local, self.orders)

    async def _come_to(
        self,
        *,
        local: GatewayConfig | None = None,
        snapshot: Snapshot | None = None,
        regions: RegionTable | None = None,
    ) -> None:
        """All may change at once, and reading takes a while: whoever was overtaken reads again."""
        while True:
            seen = self.local, self.snapshot, self.regions
            wanted = local or self.local, snapshot or self.snapshot, regions or self.regions
            orders = await asyncio.to_thread(_orders, *wanted)
            if snapshot is not None:
                self._refuse_older(snapshot)
            if all(each is now for each, now in zip(seen, (self.local, self.snapshot, self.regions), strict=True)):
                break
        self._put(wanted[0], orders)
        self.local, self.snapshot, self.regions = wanted
        self.orders = orders

    def _put(self, local: GatewayConfig, orders: Orders) -> None:
        assert self._apply is not None, "nothing changes before the start"
        self._apply(local, replace(orders, away=self._away(local, orders)))

    def _away(self, local: GatewayConfig, orders: Orders) -> frozenset[str]:
        """What is adopted here and away no more has gone home, or to nobody: in no case is it ours."""
        if not self.hearsay.version.is_newer_than(orders.version):
            return orders.away
        kept = {each.replica_id for each in self.hearsay.away if each.owner == local.gateway_id}
        return orders.away | away_from(local, self.hearsay.away) | (orders.adopted - kept)


def _orders(local: GatewayConfig, snapshot: Snapshot | None, regions: RegionTable | None) -> Orders:
    return without_orders(local, regions) if snapshot is None else read_orders(snapshot, local, regions)
