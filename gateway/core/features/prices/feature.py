"""Prices: what is in force is told to the placement policies that ask for it."""

from __future__ import annotations

from gateway.core.features.prices.events import PricesChanged
from gateway.core.kernel.events import FeatureEvent
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Kernel


class PricesInForce(Feature):
    """Takes in new prices when they come into force."""

    def __init__(self, core: Kernel) -> None:
        self._core = core

    def take_in(self, event: FeatureEvent, now_ns: int, /) -> bool:  # noqa: ARG002
        if not isinstance(event, PricesChanged):
            return False
        self._core.placer.take_prices(event.prices)
        return True
