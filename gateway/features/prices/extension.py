"""Prices of one gateway, outside the core: what the region file and a controller say of them is put in force."""

from __future__ import annotations

from typing import ClassVar

from prometheus_client import CollectorRegistry

from gateway.config.orders import Orders
from gateway.config.sections import GatewayConfig
from gateway.core.features.prices.price_list import PriceList
from gateway.core.gateway_core import GatewayCore
from gateway.features.extension import Extension, Host
from gateway.features.prices.file import parse_prices, read_prices
from gateway.features.prices.list_in_force import ListInForce
from gateway.features.prices.metrics import SOURCES, MoneyTally, PriceLevels
from mesh.faults import ConfigError
from mesh.reloader import Reloader
from mesh.series import EVERY_SERIES, Label
from mesh.supervisor import OwnedLoops, Supervisor


class PricesExtension(Extension):
    """Prices of one gateway. Without a list nothing is told to the core."""

    name = "prices"
    labels: ClassVar = {
        (EVERY_SERIES, "currency"): Label("Currency by its name in the price list."),
        ("nightside_price_replica_hour", "pool"): Label("Pool by its name in the price list; empty: all others."),
        ("nightside_price_replica_hour", "region"): Label("Region by its name in the price list."),
        ("nightside_prices_age_seconds", "source"): Label("Source of the price list.", SOURCES),
        ("nightside_placement_money_total", "region"): Label("Region that the requests were sent to."),
    }
    is_live = True

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:
        """Raises ConfigError, so that an unreadable list is found at the start."""
        self._list = ListInForce(config.prices, host.submit, host.clock, host.log)
        host.metrics.registry.register(PriceLevels(self._list))
        host.finished.hand_to(MoneyTally(host.metrics.registry).on_finished)

    @staticmethod
    def check_files(config: GatewayConfig, before: GatewayConfig | None, /) -> None:
        if config.prices is not None and (before is None or config.prices != before.prices):
            read_prices(config.prices)

    @staticmethod
    def register_series(registry: CollectorRegistry, core: GatewayCore, /) -> None:  # noqa: ARG004
        registry.register(PriceLevels(None))
        MoneyTally(registry)

    def apply(self, config: GatewayConfig, orders: Orders, /) -> None:
        self._list.move(config.prices)
        self._list.take(*_told_by_controller(orders))

    def add_reloads(self, reloader: Reloader, /) -> None:
        reloader.add("prices", self._list.reload, self._list.files)

    def run(self, loops: Supervisor, tenure: OwnedLoops, /) -> None:  # noqa: ARG002
        loops.run("prices", self._list.run)

    def describe(self) -> object | None:
        return self._list.describe()


def _told_by_controller(orders: Orders) -> tuple[PriceList | None, str]:
    """Return a controller's prices, or the reason why they cannot be read here: unreadable prices do not refuse the
    rest of its orders."""
    told = orders.documents.get(PricesExtension.name)
    if not told:
        return None, ""
    try:
        return parse_prices(told), ""
    except ConfigError as error:
        return None, f"what a controller says of prices: {error}"
