"""Prices in force, as a placement policy asks for them."""

from __future__ import annotations

from typing import Final

from gateway.core.features.prices.price_table import PriceTable, ReplicaPrice
from gateway.core.placement.fleet import Fleet
from gateway.core.vocabulary import ModelName

PRICES: Final = "prices"
"""Name of the fact that policies are told."""


def prices_in(fleet: Fleet) -> PriceTable | None:
    """Prices in force at this time of day; None: none are known."""
    table = fleet.facts.get(PRICES)
    assert table is None or isinstance(table, PriceTable), "nothing else has the name"
    return table


def replica_price(fleet: Fleet, slot: int) -> ReplicaPrice | None:
    """Price of the own replica in that slot; None if none is known."""
    table = prices_in(fleet)
    return None if table is None else table.of(fleet.replica_region(slot), fleet.replica_pool(slot))


def peer_prices(fleet: Fleet, slot: int, model: ModelName) -> list[ReplicaPrice]:
    """Prices of the peer's capacities for the request being placed, one for each place and pool; empty if any of them
    has no price, or no price list is in force."""
    table = prices_in(fleet)
    if table is None:
        return []
    found = [table.of(each.place.region, each.pool) for each in fleet.served_by(slot, model)]
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else []
