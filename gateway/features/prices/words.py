"""Words on prices in explanations: additions to the bill, and when a first token was expected."""

from __future__ import annotations

from typing import ClassVar

from rich.table import Table

from gateway.core.features.prices.in_force import CARBON, FIRST_TOKEN, MONEY
from gateway.core.vocabulary import PlacementReason
from gateway.features.words import Words, add_row, in_ms, table_of
from gateway.records.decisions import ExplainedCosts, ExplainedFigure, ExplainedPlacement


def _at_replica(placement: ExplainedPlacement) -> str:
    return f"{placement.target} was {_best_price(placement)}"


def _at_sibling(placement: ExplainedPlacement) -> str:
    return f"the sibling gateway {placement.target} was {_best_price(placement)}"


def _at_remote(placement: ExplainedPlacement) -> str:
    distance = in_ms(placement.considered[0].rtt_ms) if placement.considered else "unrecorded"
    return f"{placement.region or 'a region no longer known'} ({distance} away) was {_best_price(placement)}"


class PriceWords(Words):
    """Reasons of the policy `price`, and a table of the figures that it went by."""

    reasons: ClassVar = {
        PlacementReason.LOCAL_PRICE: _at_replica,
        PlacementReason.SIBLING_PRICE: _at_sibling,
        PlacementReason.REMOTE_PRICE: _at_remote,
    }

    def further_table(self, placement: ExplainedPlacement, /) -> Table | None:
        if not any(_is_priced(each.costs) for each in placement.considered if each.costs):
            return None
        table = table_of(("By the prices in force",), ("First token", "Adds to the bill", "Emits"))
        for index, candidate in enumerate(placement.considered):
            if candidate.costs:
                name = f"{candidate.kind} {candidate.id}"
                add_row(table, name, *_priced(candidate.costs), is_taken=index == 0)
        return table


def _best_price(placement: ExplainedPlacement) -> str:
    """Words on the chosen target's addition to the bill and its estimated time to first token."""
    costs = placement.considered[0].costs if placement.considered else None
    first_token = _figure(costs, FIRST_TOKEN) if costs else None
    if not costs or first_token is None or first_token.amount is None:
        return "the cheapest of those in time"
    money = _figure(costs, MONEY)
    adds = "an unknown sum" if money is None or money.amount is None else f"{money.amount:.6f} {money.unit}"
    when = in_ms(first_token.amount)
    return f"the cheapest of those in time: it adds {adds} to the bill, first token estimated in {when}"


def _is_priced(costs: ExplainedCosts) -> bool:
    first_token, carbon = _figure(costs, FIRST_TOKEN), _figure(costs, CARBON)
    return first_token is not None or (carbon is not None and carbon.amount is not None)


def _priced(costs: ExplainedCosts) -> tuple[str, str, str]:
    """Estimated time of the first token, addition to the bill, and emissions of a target."""
    first_token, money, carbon = (_figure(costs, name) for name in (FIRST_TOKEN, MONEY, CARBON))
    soon = "" if first_token is None or first_token.amount is None else in_ms(first_token.amount)
    adds = "unknown" if money is None or money.amount is None else f"{money.amount:.6f} {money.unit}"
    emits = "unknown" if carbon is None or carbon.amount is None else f"{carbon.amount:.2f} {carbon.unit}"
    return soon, adds, emits


def _figure(costs: ExplainedCosts, name: str) -> ExplainedFigure | None:
    return (costs.further or {}).get(name)
