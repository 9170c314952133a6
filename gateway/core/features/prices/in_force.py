"""Prices in force, as a placement policy asks for them, and the figures that it shows beside its costs."""

from __future__ import annotations

from typing import Final

from gateway.core.features.prices.price_table import MICROS, PriceTable, ReplicaPrice
from gateway.core.placement.fleet import Fleet
from gateway.core.vocabulary import Figure, ModelName

PRICES: Final = "prices"
"""Name of the fact that policies are told."""
FIRST_TOKEN: Final = "first_token"  # noqa: S105
"""Figure: estimated time from now to the first token."""
MONEY: Final = "money"
"""Figure: estimated addition to the bill."""
CARBON: Final = "carbon"
"""Figure: CO2 that the request would make a replica emit beyond idling."""
_MILLISECOND_NS: Final = 1_000_000


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


def first_token_figure(first_token_ns: float) -> Figure:
    return Figure(FIRST_TOKEN, first_token_ns, "ms", _MILLISECOND_NS)


def money_figure(micros: float | None, currency: str) -> Figure:
    """Figure of money in millionths of the currency's unit; None: the price is not known."""
    return Figure(MONEY, micros, currency, MICROS)


def carbon_figure(milligrams: float | None) -> Figure:
    """Figure of milligrams of CO2; None: not known."""
    return Figure(CARBON, milligrams, "mg CO2")
