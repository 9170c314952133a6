"""The prices in force at one moment, as plain integers, and what a request would add to a bill by them.

It knows no clock: whoever watches the time of day tells the core of other prices when an hour begins that has others.
"""

from __future__ import annotations

from typing import Final

from gateway.core.value import value
from gateway.core.vocabulary import PoolName, RegionName

HOUR_NS: Final = 3_600_000_000_000
GIGABYTE: Final = 1_000_000_000
MICROS: Final = 1_000_000
"""Of one unit of the currency; also milligrams of a kilogram."""
_ANYWHERE = RegionName("")
_ANY_POOL = PoolName("")


@value
class ReplicaPrice:
    """Of each replica of one pool of a region, or of all of its pools that have none of their own."""

    region: RegionName
    pool: PoolName
    """Empty: every pool of the region that is not named."""
    hour_micros: int
    """For an hour, in millionths of the currency's unit."""
    is_per_use: bool
    """Paid only while it works: billed by use, or started and stopped as demand comes and goes. Otherwise the hour is
    paid for, and a request more costs nothing."""
    requests_at_once: int
    """How many share a replica when it is put to good use; 0: nobody says, and nothing here needs it."""
    busy_milligrams: int = 0
    """Of CO2, in an hour of work beyond what it emits without any; of one that is paid by use, all of it."""
    idle_milligrams: int = 0
    """In any hour, whether or not it works."""

    def marginal_hour_micros(self, carbon_micros: int) -> float:
        """What an hour of work adds to the bill, at so much for a kilogram of CO2."""
        paid = self.hour_micros if self.is_per_use else 0
        return paid + self.busy_milligrams * carbon_micros / MICROS


@value
class EgressPrice:
    """Of what leaves one region for another."""

    origin: RegionName
    destination: RegionName
    """Empty: every one that is not named."""
    gigabyte_micros: int


@value
class Prices:
    """Of a whole mesh, at this time of day."""

    currency: str
    digest: str
    """Names the list that they come from."""
    replicas: tuple[ReplicaPrice, ...]
    egress: tuple[EgressPrice, ...] = ()
    carbon_micros: int = 0
    """That a kilogram of CO2 counts in decisions; 0: it is only reported."""


@value
class Work:
    """What one request asks of a replica."""

    reading_ns: float
    """The time that it has the replica to itself, for its prompt."""
    writing_ns: float
    """The time that it shares it with others."""

    def share_ns(self, price: ReplicaPrice) -> float:
        """Of the replica's time, what is this request's."""
        return self.reading_ns + self.writing_ns / max(1, price.requests_at_once)


class PriceTable:
    """Answers by region and pool. It is made anew when prices change, and bounded by how many a list may hold."""

    def __init__(self, prices: Prices) -> None:
        self.prices = prices
        self._replicas = {(each.region, each.pool): each for each in prices.replicas}
        self._egress = {(each.origin, each.destination): each.gigabyte_micros for each in prices.egress}

    def of(self, region: RegionName, pool: PoolName) -> ReplicaPrice | None:
        """None where the list has nothing on the region."""
        found = self._replicas.get((region, pool))
        return self._replicas.get((region, _ANY_POOL)) if found is None else found

    def egress_micros(self, origin: RegionName, destination: RegionName, size_bytes: float) -> float:
        """Within a region nothing; where the list says nothing, nothing."""
        if origin == destination:
            return 0.0
        rate = self._egress.get((origin, destination))
        if rate is None:
            rate = self._egress.get((origin, _ANYWHERE), 0)
        return rate * size_bytes / GIGABYTE

    def work_micros(self, price: ReplicaPrice, work: Work) -> float:
        """What a request's share of the replica adds: all of it while its prompt is read, then one of so many."""
        hour_micros = price.marginal_hour_micros(self.prices.carbon_micros)
        return hour_micros * work.share_ns(price) / HOUR_NS


def work_milligrams(price: ReplicaPrice, work: Work) -> float:
    """Of CO2 that a request makes the replica emit beyond idling."""
    return price.busy_milligrams * work.share_ns(price) / HOUR_NS
