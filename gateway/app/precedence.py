"""Keeps region file, controller's snapshot and peers' reports apart, and puts in force what they yield together,
whenever one of them changes: none of them ever undoes another.

The rules are those of docs/decisions/0006-a-controller-beside-the-road.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from gateway.config.orders import Orders, OrdersRefused, away_from, read_orders, without_orders
from gateway.config.sections import GatewayConfig
from gateway.core.kernel.regions import RegionTable
from gateway.core.vocabulary import ControlVersion
from mesh.control.vocabulary import ControlSnapshot, Ownership

Apply = Callable[[GatewayConfig, Orders], None]
"""Puts config and orders in force at once. Raises ConfigError, and has changed nothing then."""


class Precedence:
    """Config and orders in force at one gateway, with their sources."""

    def __init__(self, local: GatewayConfig, regions: RegionTable | None) -> None:
        self.local = local
        """Config of the region file."""
        self.regions = regions
        """Operators' table of the region's policy; None while there has been no usable one."""
        self.snapshot: ControlSnapshot | None = None
        """Last snapshot of a controller that was accepted."""
        self.orders = without_orders(local, regions)
        """Orders that result from region file, snapshot and table."""
        self.hearsay = Ownership()
        """Ownership reported by a peer since then. It counts as long as it is newer than the snapshot."""
        self._apply: Apply | None = None

    def restore(self, snapshot: ControlSnapshot) -> None:
        """Begin with a snapshot, before any orders are in force. Raises OrdersRefused."""
        self.orders = read_orders(snapshot, self.local, self.regions)
        self.snapshot = snapshot

    def start(self, apply: Apply) -> None:
        """Pass changes to `apply`; `orders` is in force already."""
        self._apply = apply

    @property
    def version(self) -> ControlVersion:
        return ControlVersion() if self.snapshot is None else self.snapshot.version

    @property
    def ownership(self) -> Ownership:
        """Ownership told to peers: the snapshot's, never what other peers reported."""
        return Ownership() if self.snapshot is None else Ownership(self.snapshot.version, self.snapshot.away)

    @property
    def away(self) -> frozenset[str]:
        """Ids of replicas left to others, by the snapshot or by a peer's report."""
        return self._away(self.local, self.orders)

    def would_be_news(self, version: ControlVersion) -> bool:
        return version.is_newer_than(self.version) and version.is_newer_than(self.hearsay.version)

    async def reload(self, local: GatewayConfig) -> None:
        """Apply a changed region file. Raises ConfigError, and has changed nothing then."""
        await self._come_to(local=local)

    async def know(self, regions: RegionTable) -> None:
        """Apply a changed table of the operators. Raises ConfigError, and has changed nothing then."""
        if regions != self.regions:
            await self._come_to(regions=regions)

    async def take(self, snapshot: ControlSnapshot) -> None:
        """Apply a controller's snapshot. Raises ConfigError, and has changed nothing then."""
        self._refuse_older(snapshot)
        if snapshot != self.snapshot:
            await self._come_to(snapshot=snapshot)
        if not self.hearsay.version.is_newer_than(snapshot.version):
            self.hearsay = Ownership()

    def _refuse_older(self, snapshot: ControlSnapshot) -> None:
        if self.version.is_newer_than(snapshot.version):
            raise OrdersRefused(f"it is older than {self.version.term}.{self.version.version}, which is in force")

    def hear(self, ownership: Ownership) -> None:
        """Take newer ownership from a peer. It can only take replicas from this gateway, and only until a controller
        sends a version as new: a controller with no newer version may know less than the peer."""
        before, self.hearsay = self.away, ownership
        if self.away != before:
            self._put(self.local, self.orders)

    async def _come_to(
        self,
        *,
        local: GatewayConfig | None = None,
        snapshot: ControlSnapshot | None = None,
        regions: RegionTable | None = None,
    ) -> None:
        """Apply a change of one source. Other sources may change while orders are read in a thread; they are then read
        again."""
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
        """Ids left to others. An adopted replica that a newer report does not assign to this gateway has gone home, or
        to no gateway: in no case is it served here."""
        if not self.hearsay.version.is_newer_than(orders.version):
            return orders.away
        kept = {each.replica_id for each in self.hearsay.away if each.owner == local.gateway_id}
        return orders.away | away_from(local, self.hearsay.away) | (orders.adopted - kept)


def _orders(local: GatewayConfig, snapshot: ControlSnapshot | None, regions: RegionTable | None) -> Orders:
    return without_orders(local, regions) if snapshot is None else read_orders(snapshot, local, regions)
