"""Prices: what is in force is told to the placement policies that ask for it."""

from __future__ import annotations

from gateway.core.features.prices.in_force import TOLD_AS
from gateway.core.features.prices.price_table import PricesChanged, PriceTable
from gateway.core.kernel.events import Event
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Kernel


class PricesInForce(Feature):
    """Takes in new prices when they come into force."""

    def __init__(self, core: Kernel) -> None:
        self._core = core

    def take_in(self, event: Event, now_ns: int, /) -> bool:  # noqa: ARG002
        if not isinstance(event, PricesChanged):
            return False
        told = self._core.placer.told
        if event.prices is None:
            told.pop(TOLD_AS, None)
        else:
            told[TOLD_AS] = PriceTable(event.prices)
        return True
