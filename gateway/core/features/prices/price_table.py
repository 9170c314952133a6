"""Prices in force at one moment, as plain integers, and what a request would add to a bill by them.

The module knows no clock: the edge that watches the time of day tells the core of new prices when they come into force.
"""

from __future__ import annotations

from typing import Final

from gateway.core.value import value
from gateway.core.vocabulary import PoolName, RegionName

HOUR_NS: Final = 3_600_000_000_000
GIGABYTE: Final = 1_000_000_000
MICROS: Final = 1_000_000
"""Millionths in one unit of the currency; also milligrams in a kilogram."""
_ANYWHERE = RegionName("")
_ANY_POOL = PoolName("")


@value
class ReplicaPrice:
    """Price of each replica of one pool of a region, or of all its pools without a price of their own."""

    region: RegionName
    pool: PoolName
    """Pool; empty: every pool of the region that is not named."""
    hour_micros: int
    """Price of an hour, in millionths of the currency's unit."""
    is_per_use: bool
    """True if the replica is paid for only while it works: billed by use, or started and stopped with demand. Otherwise
    the hour is paid anyway, and one more request costs nothing."""
    requests_at_once: int
    """Requests that share a well-used replica; 0: not stated, and not needed."""
    busy_milligrams: int = 0
    """Milligrams of CO2 that an hour of work adds to idling; for a replica paid by use, all of that hour's."""
    idle_milligrams: int = 0
    """Milligrams of CO2 in any hour, whether or not the replica works."""

    def marginal_hour_micros(self, carbon_micros: int) -> float:
        """Amount that an hour of work adds to the bill, in millionths, with CO2 charged at `carbon_micros` a
        kilogram."""
        paid = self.hour_micros if self.is_per_use else 0
        return paid + self.busy_milligrams * carbon_micros / MICROS


@value
class EgressPrice:
    """Price of data that leaves one region for another."""

    origin: RegionName
    destination: RegionName
    """Destination region; empty: every one that is not named."""
    gigabyte_micros: int


@value
class Prices:
    """Prices of a whole mesh, at the present time of day."""

    currency: str
    digest: str
    """Digest of the list that the prices come from."""
    replicas: tuple[ReplicaPrice, ...]
    egress: tuple[EgressPrice, ...] = ()
    carbon_micros: int = 0
    """Price of a kilogram of CO2 in decisions; 0: CO2 is only reported."""


@value
class Work:
    """Work of one request at a replica."""

    reading_ns: float
    """Time of prefill, in which the request has the replica to itself."""
    writing_ns: float
    """Time of decoding, in which it shares the replica with others."""

    def share_ns(self, price: ReplicaPrice) -> float:
        """Replica time that is this request's share."""
        return self.reading_ns + self.writing_ns / max(1, price.requests_at_once)


class PriceTable:
    """Look-up of prices by region and pool. Made anew when prices change, and bounded by the size that a list may
    have."""

    def __init__(self, prices: Prices) -> None:
        self.prices = prices
        self._replicas = {(each.region, each.pool): each for each in prices.replicas}
        self._egress = {(each.origin, each.destination): each.gigabyte_micros for each in prices.egress}

    def of(self, region: RegionName, pool: PoolName) -> ReplicaPrice | None:
        """Price of a pool's replicas; None where the list has none for the region."""
        found = self._replicas.get((region, pool))
        return self._replicas.get((region, _ANY_POOL)) if found is None else found

    def egress_micros(self, origin: RegionName, destination: RegionName, size_bytes: float) -> float:
        """Price of sending that many bytes from one region to another; 0 within a region, and where the list states
        none."""
        if origin == destination:
            return 0.0
        rate = self._egress.get((origin, destination))
        if rate is None:
            rate = self._egress.get((origin, _ANYWHERE), 0)
        return rate * size_bytes / GIGABYTE

    def work_micros(self, price: ReplicaPrice, work: Work) -> float:
        """Amount that a request's share of the replica adds to the bill, in millionths: all of it during prefill, one
        part in `requests_at_once` during decoding."""
        hour_micros = price.marginal_hour_micros(self.prices.carbon_micros)
        return hour_micros * work.share_ns(price) / HOUR_NS


def work_milligrams(price: ReplicaPrice, work: Work) -> float:
    """Milligrams of CO2 that a request makes the replica emit beyond idling."""
    return price.busy_milligrams * work.share_ns(price) / HOUR_NS
