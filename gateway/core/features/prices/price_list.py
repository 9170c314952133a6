"""Price list: costs of replicas and egress by time of day, and the prices in force at a given moment.

Pure: the moment is an argument, in seconds since 1970 (UTC), and no function waits for another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from msgspec import Struct

from gateway.core.features.prices.price_table import EgressPrice, Prices, ReplicaPrice
from gateway.core.vocabulary import PoolName, RegionName

DAY_MINUTES: Final = 24 * 60
_MINUTE_S: Final = 60
_DAY_S: Final = DAY_MINUTES * _MINUTE_S
_WEEK_DAYS: Final = 7
_FIRST_DAY: Final = 3
"""Day of the week on which 1970 began, a Thursday, counted from Monday as 0."""
_WEEKEND_FROM: Final = 5


class Hours(Struct, frozen=True):
    """Times of the week, on weekdays, weekends or both, at which a tariff differs."""

    on_weekdays: bool
    on_weekends: bool
    from_minute: int
    until_minute: int
    """Minute of the day at which they end, itself excluded."""
    hour_micros: int | None = None
    """Price of an hour at these times; None: the tariff's own."""
    carbon_milligrams: int | None = None
    """Milligrams of CO2 per kilowatt-hour at these times; None: the tariff's own."""

    def holds(self, minute: int, is_weekend: bool) -> bool:
        is_day = self.on_weekends if is_weekend else self.on_weekdays
        return is_day and self.from_minute <= minute < self.until_minute

    def overlaps(self, other: Hours) -> bool:
        """True if both hold at a common moment and both set a price, or both a CO2 figure, for it."""
        shares_day = (self.on_weekdays and other.on_weekdays) or (self.on_weekends and other.on_weekends)
        says_both = (self.hour_micros is not None and other.hour_micros is not None) or (
            self.carbon_milligrams is not None and other.carbon_milligrams is not None
        )
        return (
            shares_day and says_both and self.from_minute < other.until_minute and other.from_minute < self.until_minute
        )


class Tariff(Struct, frozen=True):
    """Prices of the replicas of one pool of a region, at all times of the week."""

    region: RegionName
    pool: PoolName
    """Pool; empty: every pool of the region without a tariff of its own."""
    hour_micros: int
    is_per_use: bool
    requests_at_once: int
    busy_watts: int
    idle_watts: int
    carbon_milligrams: int
    """Milligrams of CO2 per kilowatt-hour."""
    hours: tuple[Hours, ...] = ()

    def at(self, minute: int, is_weekend: bool) -> ReplicaPrice:
        hour_micros, carbon = self.hour_micros, self.carbon_milligrams
        for each in self.hours:
            if each.holds(minute, is_weekend):
                hour_micros = hour_micros if each.hour_micros is None else each.hour_micros
                carbon = carbon if each.carbon_milligrams is None else each.carbon_milligrams
        watts = self.busy_watts if self.is_per_use else self.busy_watts - self.idle_watts
        return ReplicaPrice(
            self.region,
            self.pool,
            hour_micros,
            self.is_per_use,
            self.requests_at_once,
            watts * carbon // 1000,
            0 if self.is_per_use else self.idle_watts * carbon // 1000,
        )


@dataclass(frozen=True)
class PriceList:
    """Contents of a price file."""

    currency: str
    digest: str
    tariffs: tuple[Tariff, ...]
    egress: tuple[EgressPrice, ...] = ()
    carbon_micros: int = 0
    valid_until_s: int | None = None
    """Time up to which the list was checked. It stays in force after that."""

    def at(self, wall_s: int) -> Prices:
        """Prices in force at that moment."""
        days, second = divmod(wall_s, _DAY_S)
        is_weekend = (days + _FIRST_DAY) % _WEEK_DAYS >= _WEEKEND_FROM
        minute = second // _MINUTE_S
        replicas = tuple([each.at(minute, is_weekend) for each in self.tariffs])
        return Prices(self.currency, self.digest, replicas, self.egress, self.carbon_micros)

    def next_change_s(self, wall_s: int) -> int | None:
        """Time of the next change of prices; None: they never change. Looks ahead one week."""
        if all(not each.hours for each in self.tariffs):
            return None
        now = self.at(wall_s)
        midnight_s = wall_s - wall_s % _DAY_S
        for day in range(_WEEK_DAYS + 1):
            for minute in self._boundaries:
                moment_s = midnight_s + day * _DAY_S + minute * _MINUTE_S
                if moment_s > wall_s and self.at(moment_s) != now:
                    return moment_s
        return None

    def spans(self, from_s: int, until_s: int) -> Iterator[tuple[int, int, Prices]]:
        """Stretches of the given time with one set of prices each, as (start, end, prices)."""
        while from_s < until_s:
            change_s = self.next_change_s(from_s)
            end_s = until_s if change_s is None else min(change_s, until_s)
            yield from_s, end_s, self.at(from_s)
            from_s = end_s

    @cached_property
    def _boundaries(self) -> tuple[int, ...]:
        """Minutes of a day at which a price may change."""
        found = {0}
        for tariff in self.tariffs:
            for each in tariff.hours:
                found |= {each.from_minute, each.until_minute % DAY_MINUTES}
        return tuple(sorted(found))
