"""Prices: what is in force is told to the placement policies that ask for it, and one policy goes by it."""

from __future__ import annotations

from gateway.core.features.prices.checker import PricesChecker
from gateway.core.features.prices.events import PricesChanged
from gateway.core.features.prices.in_force import PRICES
from gateway.core.features.prices.policy import Price
from gateway.core.features.prices.price_table import PriceTable
from gateway.core.kernel.config import PlacementPolicy
from gateway.core.kernel.events import FeatureEvent
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Kernel
from gateway.core.placement.policy import PolicyFactory


class PricesInForce(Feature):
    """Takes in new prices when they come into force, and has the policy `price`."""

    def __init__(self, core: Kernel) -> None:
        self._core = core
        self._table: PriceTable | None = None

    def take_in(self, event: FeatureEvent, now_ns: int, /) -> bool:  # noqa: ARG002
        if not isinstance(event, PricesChanged):
            return False
        self._table = None if event.prices is None else PriceTable(event.prices)
        self._core.placer.tell(PRICES, self._table)
        return True

    def checker(self) -> PricesChecker:
        return PricesChecker(lambda: self._table)

    def placement_policy(self, name: str, /) -> PolicyFactory | None:
        return Price if name == PlacementPolicy.PRICE else None
