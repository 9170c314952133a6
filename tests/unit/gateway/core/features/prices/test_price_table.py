"""Addition of a request to the bill."""

from __future__ import annotations

from gateway.core.features.prices.price_table import (
    GIGABYTE,
    HOUR_NS,
    EgressPrice,
    Prices,
    PriceTable,
    ReplicaPrice,
    Work,
)
from gateway.core.vocabulary import PoolName, RegionName

US, EU, JP = (RegionName(name) for name in ("us", "eu", "jp"))
DEFAULT, LONG = PoolName("default"), PoolName("long")
OWNED = ReplicaPrice(US, PoolName(""), 4_000_000, False, 16, busy_milligrams=200_000)
BY_USE = ReplicaPrice(EU, PoolName(""), 6_000_000, True, 10, busy_milligrams=400_000)
BY_USE_LONG = ReplicaPrice(EU, LONG, 9_000_000, True, 10)
PRICES = Prices(
    "EUR",
    "digest",
    (OWNED, BY_USE, BY_USE_LONG),
    (EgressPrice(US, RegionName(""), 90_000), EgressPrice(US, EU, 20_000)),
)
HOUR = Work(HOUR_NS, 0.0)


def test_a_pool_without_a_price_of_its_own_has_its_regions_and_an_unknown_region_none() -> None:
    table = PriceTable(PRICES)
    assert table.of(EU, LONG) is BY_USE_LONG
    assert table.of(EU, DEFAULT) is BY_USE
    assert table.of(JP, DEFAULT) is None


def test_an_hour_that_is_paid_for_costs_a_request_nothing_and_one_by_use_its_share() -> None:
    table = PriceTable(PRICES)
    assert table.work_micros(OWNED, HOUR) == 0
    assert table.work_micros(BY_USE, HOUR) == 6_000_000
    assert table.work_micros(BY_USE, Work(0.0, HOUR_NS)) == 600_000, "one of ten that share it"


def test_carbon_counts_only_at_a_price_and_then_of_hours_that_are_paid_for_as_well() -> None:
    table = PriceTable(Prices("EUR", "digest", (OWNED, BY_USE), (), carbon_micros=100_000))
    assert table.work_micros(OWNED, HOUR) == 20_000
    assert table.work_micros(BY_USE, HOUR) == 6_040_000


def test_what_leaves_a_region_costs_by_its_bytes_and_what_stays_nothing() -> None:
    table = PriceTable(PRICES)
    assert table.egress_micros(US, EU, GIGABYTE) == 20_000
    assert table.egress_micros(US, JP, GIGABYTE // 2) == 45_000
    assert table.egress_micros(EU, US, GIGABYTE) == 0
    assert table.egress_micros(US, US, GIGABYTE) == 0
