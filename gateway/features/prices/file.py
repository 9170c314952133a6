"""Prices file as it is written: its keys, the values that each may hold, and the price list made of them.

It has no default figures: the file states what a team pays, in the currency that it names.
"""

from __future__ import annotations

import hashlib
import json
import re
from calendar import monthrange, timegm
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, Strict, ValidationError, model_validator

from gateway.core.features.prices.price_list import DAY_MINUTES, Hours, PriceList, Tariff
from gateway.core.features.prices.price_table import MICROS, EgressPrice
from gateway.core.vocabulary import PoolName, RegionName
from mesh.faults import ConfigError, FileError, FileFault, KeyFaults
from mesh.settings import FileModel
from mesh.values import Count, Id
from mesh.yaml_file import faults_in, read_yaml

PRICES_BYTES_MAX = 256 * 2**10
_REGIONS_MAX = 1024
_POOLS_MAX = 64
_HOURS_MAX = 48
_DIGEST_HEX_DIGITS = 16
_MONEY_MAX = 1_000_000
_WATTS = 1000
_MILLIGRAMS = 1000
_NO_REGION = "is no region of this file"
ANYWHERE = "default"
"""Destination of egress that stands for every region not named."""

_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])|24:00")
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")


class Billing(StrEnum):
    """Effect on the bill of using a replica more or less."""

    RESERVED = "reserved"
    """No effect: the replica's hours are paid for, idle or not."""
    PER_USE = "per_use"
    """Cost follows use: billed so, or replicas are started and stopped with demand."""


class Days(StrEnum):
    ALL = "all"
    WEEKDAY = "weekday"
    WEEKEND = "weekend"


def _minute_of(text: object) -> object:
    match = _TIME.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a time of day (UTC) such as 08:30 or 24:00, in quotes")
    return DAY_MINUTES if match[1] is None else int(match[1]) * 60 + int(match[2])


def _as_time(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


def _check_date(text: str) -> str:
    match = _DATE.fullmatch(text)
    if match is not None:
        year, month, day = map(int, match.groups())
        if year >= 1970 and 1 <= month <= 12 and 1 <= day <= monthrange(year, month)[1]:
            return text
    raise ValueError(f"{text!r} is not a date such as 2027-06-30")


def _check_currency(text: str) -> str:
    if re.fullmatch("[A-Z]{3}", text) is None:
        raise ValueError(f"{text!r} is not a currency such as EUR or USD")
    return text


_Money = Annotated[float, Strict(), Field(ge=0, le=_MONEY_MAX, allow_inf_nan=False)]
_Grams = Annotated[float, Strict(), Field(ge=0, le=10_000, allow_inf_nan=False)]
_Kilowatts = Annotated[float, Strict(), Field(ge=0, le=1000, allow_inf_nan=False)]
_TimeOfDay = Annotated[int, BeforeValidator(_minute_of), PlainSerializer(_as_time)]
_Date = Annotated[str, Strict(), AfterValidator(_check_date)]
_Currency = Annotated[str, Strict(), AfterValidator(_check_currency)]


class HoursFile(FileModel):
    days: Days = Days.ALL
    from_: _TimeOfDay = Field(alias="from")
    until: _TimeOfDay
    replica_hour: _Money | None = None
    carbon_g_per_kwh: _Grams | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.from_ >= self.until:
            raise KeyFaults(FileFault("until", "should be later than from; what goes past midnight is two entries"))
        if self.replica_hour is None and self.carbon_g_per_kwh is None:
            raise ValueError("says neither replica_hour nor carbon_g_per_kwh")
        return self

    def as_hours(self) -> Hours:
        return Hours(
            self.days is not Days.WEEKEND,
            self.days is not Days.WEEKDAY,
            self.from_,
            self.until,
            None if self.replica_hour is None else _micros(self.replica_hour),
            None if self.carbon_g_per_kwh is None else round(self.carbon_g_per_kwh * _MILLIGRAMS),
        )


class _RatesFile(FileModel):
    """Rates of a region's replicas, or of one pool's; a pool's rates state only what differs from the region's."""

    billing: Billing | None = None
    requests_per_replica: Count | None = None
    kilowatts: _Kilowatts | None = None
    kilowatts_idle: _Kilowatts | None = None
    carbon_g_per_kwh: _Grams | None = None
    hours: Annotated[tuple[HoursFile, ...], Field(max_length=_HOURS_MAX)] | None = None

    @model_validator(mode="after")
    def _check_hours(self) -> Self:
        told = [each.as_hours() for each in self.hours or ()]
        for index, each in enumerate(told):
            if any(each.overlaps(other) for other in told[:index]):
                raise KeyFaults(
                    FileFault(f"hours[{index}]", "says something else of a time that an entry before it names")
                )
        return self


class PoolRatesFile(_RatesFile):
    replica_hour: _Money | None = None


class RegionRatesFile(_RatesFile):
    replica_hour: _Money
    pools: Annotated[dict[Id, PoolRatesFile], Field(max_length=_POOLS_MAX)] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        if faults := [*_missing("", self), *(fault for name, pool in self._whole() for fault in _missing(name, pool))]:
            raise KeyFaults(*faults)
        return self

    def _whole(self) -> Iterator[tuple[str, RegionRatesFile]]:
        """Pools' rates, completed from the region's."""
        for name, pool in self.pools.items():
            told = {key: getattr(pool, key) for key in PoolRatesFile.model_fields if getattr(pool, key) is not None}
            yield name, self.model_copy(update={"pools": {}, **told})

    def tariffs(self, region: str) -> Iterator[Tariff]:
        yield self.tariff(region, "")
        for name, pool in self._whole():
            yield pool.tariff(region, name)

    def tariff(self, region: str, pool: str) -> Tariff:
        """Tariff of a pool; an empty name stands for every pool that is not named."""
        return Tariff(
            RegionName(region),
            PoolName(pool),
            _micros(self.replica_hour),
            self.billing is Billing.PER_USE,
            self.requests_per_replica or 0,
            round((self.kilowatts or 0) * _WATTS),
            round((self.kilowatts_idle or 0) * _WATTS),
            round((self.carbon_g_per_kwh or 0) * _MILLIGRAMS),
            tuple(each.as_hours() for each in self.hours or ()),
        )


def _missing(pool: str, rates: RegionRatesFile) -> Iterator[FileFault]:
    """Keys that are missing although other keys need them."""
    at = f"pools.{pool}." if pool else ""
    if rates.requests_per_replica is None and (rates.billing is Billing.PER_USE or rates.kilowatts):
        why = "kilowatts" if rates.kilowatts else "billing: per_use"
        yield FileFault(
            f"{at}requests_per_replica", f"is missing beside {why}: how many share a replica that is well used"
        )
    has_carbon = rates.carbon_g_per_kwh is not None or any(
        each.carbon_g_per_kwh is not None for each in rates.hours or ()
    )
    if (rates.kilowatts is None) == has_carbon:
        key, other = ("kilowatts", "carbon_g_per_kwh") if has_carbon else ("carbon_g_per_kwh", "kilowatts")
        yield FileFault(f"{at}{key}", f"is missing beside {other}")
    if (rates.kilowatts_idle or 0) > (rates.kilowatts or 0):
        yield FileFault(f"{at}kilowatts_idle", "is above kilowatts, what a replica draws that works")


_Destinations = Annotated[dict[Id, _Money], Field(max_length=_REGIONS_MAX)]


class PricesFile(FileModel):
    """Prices file as a whole."""

    version: Literal[1]
    currency: _Currency
    valid_until: _Date | None = None
    """Date by which an operator should check the figures again."""
    carbon_price: _Money = 0.0
    """Cost of a kilogram of CO2 in decisions."""
    regions: Annotated[dict[Id, RegionRatesFile], Field(min_length=1, max_length=_REGIONS_MAX)]
    egress: Annotated[dict[Id, _Destinations], Field(max_length=_REGIONS_MAX)] = Field(default_factory=dict)
    """Price of a GB (10⁹ bytes) of egress, by origin and destination region."""

    @model_validator(mode="after")
    def _check_egress(self) -> Self:
        faults = [FileFault(f"egress.{name}", _NO_REGION) for name in self.egress if name not in self.regions]
        for origin, destinations in self.egress.items():
            for name in destinations:
                if name == origin:
                    faults.append(FileFault(f"egress.{origin}.{name}", "what stays in a region is no egress"))
                elif name != ANYWHERE and name not in self.regions:
                    faults.append(FileFault(f"egress.{origin}.{name}", _NO_REGION))
        if ANYWHERE in self.regions:
            faults.append(
                FileFault(f"regions.{ANYWHERE}", "is no name for a region here: egress means all others by it")
            )
        if faults:
            raise KeyFaults(*faults)
        return self

    @property
    def digest(self) -> str:
        """Digest of the content; comments, layout and written-out defaults do not change it."""
        canonical = json.dumps(self.model_dump(mode="json", by_alias=True), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:_DIGEST_HEX_DIGITS]

    def as_document(self) -> str:
        """JSON of the same keys, for receivers without the file."""
        return json.dumps(self.model_dump(mode="json", by_alias=True, exclude_none=True))

    def as_list(self) -> PriceList:
        return PriceList(
            self.currency,
            self.digest,
            tuple(tariff for region, rates in self.regions.items() for tariff in rates.tariffs(region)),
            tuple(
                EgressPrice(RegionName(origin), RegionName("" if name == ANYWHERE else name), _micros(price))
                for origin, destinations in self.egress.items()
                for name, price in destinations.items()
            ),
            _micros(self.carbon_price),
            None if self.valid_until is None else _end_of(self.valid_until),
        )


def read_prices_file(path: Path) -> PricesFile:
    """Read the file. Raises FileError, with one line per fault."""
    file = read_yaml(path, bytes_max=PRICES_BYTES_MAX, is_plain=True)
    if file.content is None:
        raise FileError(path, [FileFault("", "is empty")])
    file.mapping()
    return file.read_as(PricesFile)


def read_prices(path: Path) -> PriceList:
    """Read the file's price list. Raises FileError, with one line per fault."""
    return read_prices_file(path).as_list()


def parse_prices(document: Mapping[str, Any] | str) -> PriceList:
    """Parse the output of `as_document`. Raises ConfigError, in words."""
    try:
        told = json.loads(document) if isinstance(document, str) else document
    except (ValueError, RecursionError) as error:
        raise ConfigError("it is not JSON") from error
    try:
        return PricesFile.model_validate(told).as_list()
    except ValidationError as error:
        raise ConfigError("; ".join(map(str, faults_in(error, model=PricesFile)))) from error


def _micros(amount: float) -> int:
    return round(amount * MICROS)


def _end_of(date: str) -> int:
    """Return the first second after the day, in seconds since 1970 (UTC)."""
    year, month, day = map(int, date.split("-"))
    return timegm((year, month, day, 24, 0, 0))
