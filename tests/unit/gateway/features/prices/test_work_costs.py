from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.core.features.prices.price_list import PriceList
from gateway.core.vocabulary import RegionName
from gateway.features.prices.file import read_prices
from gateway.features.prices.work_costs import PricedJob, WorkCost, cost_spans

HOUR_NS = 3_600_000_000_000
DAY_S = 86_400
HOME = RegionName("home")


@pytest.fixture
def prices(tmp_path: Path) -> PriceList:
    path = tmp_path / "prices.yaml"
    path.write_text(
        """
version: 1
currency: EUR
regions:
  home: {replica_hour: 4, requests_per_replica: 10}
  away: {replica_hour: 6, billing: per_use, requests_per_replica: 20,
    hours: [{from: "12:00", until: "14:00", replica_hour: 3}]}
  bare: {replica_hour: 5}
egress:
  home: {away: 10}
  away: {home: 100}
"""
    )
    return read_prices(path)


def job(**times_ns: tuple[float, float]) -> PricedJob:
    """Job of one gigabyte of prompts, and of a fiftieth of a gigabyte of answers."""
    return PricedJob(HOME, 10**9, 4_000_000, times_ns)


def approx(money: float, adds: float, *, is_unshared: bool = False) -> WorkCost:
    near: Any = pytest.approx
    return WorkCost(near(money), near(adds), is_unshared)


def test_replicas_that_are_paid_for_anyway_add_nothing(prices: PriceList) -> None:
    (span,) = cost_spans(prices, job(home=(HOUR_NS, 10 * HOUR_NS)), 0, 3_600)
    assert (span.from_s, span.until_s, span.costs) == (0, 3_600, {"home": approx(8, 0)})


def test_egress_and_use_are_added(prices: PriceList) -> None:
    (span,) = cost_spans(prices, job(away=(HOUR_NS, 20 * HOUR_NS)), 0, 3_600)
    assert span.costs == {"away": approx(12 + 10 + 2, 12 + 10 + 2)}


def test_prices_change_with_the_time_of_day(prices: PriceList) -> None:
    spans = cost_spans(prices, job(away=(2 * HOUR_NS, 0.0)), 0, DAY_S)
    noon_s = 12 * 3_600
    assert [(each.from_s, each.until_s) for each in spans] == [
        (0, noon_s),
        (noon_s, noon_s + 7_200),
        (noon_s + 7_200, DAY_S),
    ]
    assert [each.costs["away"].money for each in spans] == [pytest.approx(24), pytest.approx(18), pytest.approx(24)]


def test_regions_without_a_price_are_left_out_and_unshared_replicas_told(prices: PriceList) -> None:
    (span,) = cost_spans(prices, job(nowhere=(1.0, 1.0), bare=(0.0, HOUR_NS)), 0, 60)
    assert span.costs == {"bare": approx(5, 0, is_unshared=True)}
