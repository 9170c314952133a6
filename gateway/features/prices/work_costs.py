"""Cost of work that is planned: of one job in one region, at the prices of a moment. It reads no clock and does no
I/O."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from gateway.core.features.prices.price_list import PriceList
from gateway.core.features.prices.price_table import HOUR_NS, MICROS, PriceTable, Work
from gateway.core.vocabulary import DEFAULT_POOL, RegionName
from gateway.features.prices.audit import TOKEN_BYTES


class PricedJob(Struct, frozen=True):
    """Job of a region's clients that could run in any of several regions."""

    home: RegionName
    """Region that the prompts come from and the answers go to."""
    prompt_bytes: int
    output_tokens: float
    """Tokens of all answers, none of which is streamed."""
    times_ns: Mapping[str, tuple[float, float]]
    """Nanoseconds of prefill and of decoding, of all requests together, by region."""


class WorkCost(Struct, frozen=True):
    """Cost in units of the list's currency."""

    money: float
    """Replica time at the price of the hour, and egress, as `nightside audit price` counts them."""
    adds: float
    """Addition to the bill, as placement by price counts it: nothing for replicas that are paid for anyway."""
    is_unshared: bool = False
    """The list does not tell how many requests share a replica, so that each counts as if it had one to itself."""


class CostSpan(Struct, frozen=True):
    """Costs of the whole job by region, from one change of prices to the next. Times are seconds since 1970."""

    from_s: int
    until_s: int
    costs: Mapping[str, WorkCost]


def cost_spans(prices: PriceList, job: PricedJob, from_s: int, until_s: int) -> list[CostSpan]:
    """Costs of a job over a stretch of time, without regions that the list has no price for."""
    found = []
    for start_s, end_s, each in prices.spans(from_s, until_s):
        table = PriceTable(each)
        costs = {
            region: _cost(table, job, RegionName(region), Work(*each_ns)) for region, each_ns in job.times_ns.items()
        }
        found.append(CostSpan(start_s, end_s, {region: cost for region, cost in costs.items() if cost is not None}))
    return found


def _cost(table: PriceTable, job: PricedJob, region: RegionName, work: Work) -> WorkCost | None:
    price = table.of(region, DEFAULT_POOL)
    if price is None:
        return None
    egress = table.egress_micros(job.home, region, job.prompt_bytes)
    egress += table.egress_micros(region, job.home, job.output_tokens * TOKEN_BYTES)
    money = price.hour_micros * work.share_ns(price) / HOUR_NS + egress
    adds = table.work_micros(price, work) + egress
    return WorkCost(money / MICROS, adds / MICROS, not price.requests_at_once)
