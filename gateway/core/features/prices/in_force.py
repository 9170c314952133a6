"""Prices in force as a placement policy reads them, and the figures that it shows beside its costs."""

from __future__ import annotations

from typing import Final

from gateway.core.features.prices.price_table import MICROS, PriceTable, ReplicaPrice
from gateway.core.placement.fleet import Fleet
from gateway.core.vocabulary import Figure, ModelName

TOLD_AS: Final = "prices"
"""Name of the prices among the values that features provide for policies."""
FIRST_TOKEN: Final = "first_token"  # noqa: S105
"""Figure: estimated time from now to the first token."""
MONEY: Final = "money"
"""Figure: estimated addition to the bill."""
CARBON: Final = "carbon"
"""Figure: CO2 that the request would make a replica emit beyond idling."""
_MILLISECOND_NS: Final = 1_000_000


def prices_of(fleet: Fleet) -> PriceTable | None:
    """Prices in force at this time of day; None: none are configured."""
    table = fleet.told.get(TOLD_AS)
    return table if isinstance(table, PriceTable) else None


def replica_price(fleet: Fleet, slot: int) -> ReplicaPrice | None:
    """Price of an own replica; None if none is known."""
    table = prices_of(fleet)
    return None if table is None else table.of(fleet.replica_region(slot), fleet.replica_pool(slot))


def peer_prices(fleet: Fleet, slot: int, model: ModelName) -> list[ReplicaPrice]:
    """Prices of a peer's capacities for the request being placed, one for each place and pool; empty if any of them has
    no price, or no price list is in force."""
    table = prices_of(fleet)
    if table is None:
        return []
    found = [table.of(each.place.region, each.pool) for each in fleet.served_at(slot, model)]
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else []


def first_token_figure(first_token_ns: float) -> Figure:
    return Figure(FIRST_TOKEN, first_token_ns, "ms", _MILLISECOND_NS)


def money_figure(micros: float | None, currency: str) -> Figure:
    """Figure of money in millionths of the currency's unit; None: the price is not known."""
    return Figure(MONEY, micros, currency, MICROS)


def carbon_figure(milligrams: float | None) -> Figure:
    """Figure of milligrams of CO2; None: not known."""
    return Figure(CARBON, milligrams, "mg CO2")
