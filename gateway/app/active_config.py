"""Puts the config that results from region file and controller in force in a running gateway: whole, or not at all."""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from gateway.app.fleet import ReplicaFleet
from gateway.app.observed_core import ObservedCore
from gateway.config.orders import Orders
from gateway.config.sections import GatewayConfig
from gateway.core.events import ConfigApplied
from gateway.peers.peer_links import PeerRoster
from mesh.faults import ConfigError
from mesh.naming.service import NameService
from mesh.naming.tree import RecordTree


class ActiveConfig:
    """Config in force, and the parts that change with it."""

    def __init__(
        self,
        config: GatewayConfig,
        orders: Orders,
        observed: ObservedCore,
        *,
        fleet: ReplicaFleet,
        roster: PeerRoster,
        names: NameService,
    ) -> None:
        self.config = _ordered(config, orders)
        self.names = names
        self._observed = observed
        self._fleet = fleet
        self._roster = roster

    def begin(self, orders: Orders) -> None:
        """Begin with the known peers, and with the DNS records that were in force before a restart."""
        self._observed.place(orders)
        self._roster.replace(orders.peers)
        if orders.records is not None:
            with suppress(ValueError):  # accepted by another version of Nightside
                self.names.apply(orders.records)

    def apply(self, config: GatewayConfig, orders: Orders) -> None:
        """Apply config and orders in one turn of the event loop. Raises ConfigError, and has changed nothing then."""
        apply_to_fleet = self._fleet.prepare(config, orders)
        if orders.records is not None:
            self._check_records(orders.records)
        if orders.core != self.config.core:
            self._observed.driver.submit(ConfigApplied(orders.core))
        self._observed.is_drained = orders.is_drained
        self._observed.apply_to_features(config, orders)
        self._observed.policy.narrow(orders.narrowing)
        self._observed.policy.move(config.policy_file)
        self._observed.place(orders)
        self._roster.replace(orders.peers)
        apply_to_fleet()
        if orders.records not in (None, self.names.tree):
            self.names.apply(orders.records)
        self.config = _ordered(config, orders)

    def _check_records(self, records: RecordTree) -> None:
        """Check that the records can be served. Raises ConfigError."""
        try:
            self.names.check(records)
        except ValueError as error:
            raise ConfigError(f"records: {error}") from error


def _ordered(config: GatewayConfig, orders: Orders) -> GatewayConfig:
    return replace(config, core=orders.core, peers=orders.peers)
