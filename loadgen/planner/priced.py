"""Computes the cost of a plan's fleets over a day, region by region, with a price list's hours. Arithmetic only.

Every instance counts as one replica. Reserved instances are paid around the clock for their region's peak; on-demand
instances are those that each quarter of an hour needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gateway.core.features.prices.price_list import PriceList
from gateway.core.features.prices.price_table import MICROS, PriceTable
from gateway.core.vocabulary import PoolName, RegionName
from loadgen.figures import Figures
from loadgen.planner.regions import PoolNeed, RegionLoad

_DAY_S = 24 * 3600
_MONDAY_S = 4 * _DAY_S
"""Seconds from 1970-01-01, a Thursday, to the first Monday."""
_SATURDAY_S = _MONDAY_S + 5 * _DAY_S
_MILLIGRAMS = 1_000_000
"""Milligrams per kilogram."""

_Counts = Mapping[str, Mapping[str, int]]
"""Instances by region and pool."""


def priced_regions(
    prices: PriceList,
    loads: Sequence[RegionLoad],
    needs: Sequence[PoolNeed],
    by_region: _Counts,
) -> Figures:
    """Money and carbon of a weekday and of a weekend day, by region and in total. Regions missing in the price list are
    listed and left out."""
    return {
        "currency": prices.currency,
        "price_list": prices.digest,
        "unpriced": [each.name for each in loads if not _is_priced(prices, each.name)],
        **{
            day: _day(prices, loads, needs, by_region, begin_s)
            for day, begin_s in (("weekday", _MONDAY_S), ("weekend", _SATURDAY_S))
        },
    }


def _is_priced(prices: PriceList, region: str) -> bool:
    return any(each.region == region for each in prices.tariffs)


def _day(
    prices: PriceList,
    loads: Sequence[RegionLoad],
    needs: Sequence[PoolNeed],
    by_region: _Counts,
    begin_s: int,
) -> Figures:
    regions = {
        load.name: _region(prices, load, needs, by_region[load.name], begin_s)
        for load in loads
        if _is_priced(prices, load.name)
    }
    return {
        "money": round(sum(each["money"] for each in regions.values()), 2),
        "carbon_kg": round(sum(each["carbon_kg"] for each in regions.values()), 2),
        "regions": regions,
    }


def _region(
    prices: PriceList, load: RegionLoad, needs: Sequence[PoolNeed], counts: Mapping[str, int], begin_s: int
) -> Figures:
    step_s = _DAY_S // len(load.rates_per_s)
    hours, micros, milligrams, paid_hours = step_s / 3600, 0.0, 0.0, 0.0
    for step, rate_per_s in enumerate(load.rates_per_s):
        table = PriceTable(prices.at(begin_s + step * step_s))
        for need in needs:
            price = table.of(RegionName(load.name), PoolName(need.name))
            if price is None or not need.share:
                continue
            busy = rate_per_s * need.share / need.carried_per_s
            paid = math.ceil(busy - 1e-9) if price.is_per_use else counts[need.name]
            paid_hours += paid * hours
            micros += paid * hours * price.hour_micros
            milligrams += hours * (paid * price.idle_milligrams + min(busy, paid) * price.busy_milligrams)
    return {
        "money": round(micros / MICROS, 2),
        "replica_hours": round(paid_hours, 2),
        "carbon_kg": round(milligrams / _MILLIGRAMS, 2),
    }
