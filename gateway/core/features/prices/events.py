"""Prices' own event."""

from __future__ import annotations

from gateway.core.features.prices.price_table import Prices
from gateway.core.kernel.events import FeatureEvent


class PricesChanged(FeatureEvent, frozen=True):
    """Prices in force from this event on: another list, or another time of day. None: no prices are known."""

    prices: Prices | None
