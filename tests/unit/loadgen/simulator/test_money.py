"""Cost of a run in money."""

from __future__ import annotations

import pytest

from gateway.core.features.prices.price_list import Hours, PriceList, Tariff
from gateway.core.features.prices.price_table import EgressPrice
from gateway.core.vocabulary import DEFAULT_POOL, PoolName, RegionName
from loadgen.report import RequestReport
from loadgen.simulator.money import ANSWER_TOKEN_BYTES, Meter, PricedDay
from loadgen.vocabulary import RequestEnd

US, EU = RegionName("us"), RegionName("eu")
ANY = PoolName("")
SECOND = 10**9
DAY_S = 240
"""Seconds of a day here: ten seconds are an hour."""
NIGHT = Hours(True, True, 0, 6 * 60, hour_micros=1_000_000)
OWNED = Tariff(US, ANY, 2_000_000, False, 10, 1000, 500, 100_000)
BY_USE = Tariff(EU, ANY, 3_000_000, True, 10, 1000, 0, 100_000, (NIGHT,))
GIGABYTE = 10**9
LIST = PriceList("EUR", "digest", (OWNED, BY_USE), (EgressPrice(US, EU, 1_000_000), EgressPrice(EU, US, 2_000_000)))
DAY = PricedDay(LIST, DAY_S * SECOND)


def spent(
    *looks: tuple[int, list[tuple[RegionName, PoolName, int]]], until_s: int, day: PricedDay = DAY
) -> dict[str, dict[str, float]]:
    meter = Meter(day)
    for at_s, engines in looks:
        meter.look(at_s * SECOND, engines)
    found: dict[str, dict[str, float]] = meter.figures(until_s * SECOND, ())["regions"]
    return found


def record(client: RegionName, served: RegionName, took_s: float, tenant: str, tokens: int = 0) -> RequestReport:
    return RequestReport(
        client, RequestEnd.COMPLETED, 0, round(took_s * SECOND), served_by=served, output_tokens=tokens,
        prompt_tokens=tokens, tenant=tenant,
    )  # fmt: skip


def test_what_is_reserved_is_paid_idle_or_not_and_draws_more_where_it_works() -> None:
    engines = [(US, DEFAULT_POOL, 0), (US, DEFAULT_POOL, 5), (US, DEFAULT_POOL, 40)]
    us = spent((0, engines), until_s=10)["us"]
    assert (us["replica_hours"], us["busy_hours"], us["replicas"]) == (3, 1.5, 6)
    assert us["carbon_kg"] == pytest.approx(0.1 * (3 * 0.5 + 1.5 * 0.5))


def test_what_is_paid_by_use_is_as_many_whole_replicas_as_its_requests_need_at_the_hours_price() -> None:
    quiet, busy = [(EU, DEFAULT_POOL, 0)] * 3, [(EU, DEFAULT_POOL, 6), (EU, DEFAULT_POOL, 6), (EU, DEFAULT_POOL, 0)]
    assert spent((0, quiet), until_s=10)["eu"]["replicas"] == 0
    assert spent((0, busy), until_s=10)["eu"]["replicas"] == 2, "two, at the night's price"
    assert spent((60, busy), until_s=70)["eu"]["replicas"] == 6
    more = [(EU, DEFAULT_POOL, 100)] * 2
    assert spent((60, more), until_s=70)["eu"]["replica_hours"] == 2, "there are no more"


def test_engines_are_taken_to_stay_as_they_were_seen_until_the_next_look() -> None:
    busy, quiet = [(EU, DEFAULT_POOL, 10)], [(EU, DEFAULT_POOL, 0)]
    assert spent((60, busy), (65, quiet), until_s=80)["eu"]["replica_hours"] == 0.5


def test_a_day_that_is_squeezed_is_paid_for_as_the_day_that_it_stands_for() -> None:
    assert DAY.stretch == 360
    assert DAY.next_change_ns(0) == 60 * SECOND, "six o'clock"
    assert DAY.at(59 * SECOND).replicas[1].hour_micros == 1_000_000
    assert DAY.at(60 * SECOND).replicas[1].hour_micros == 3_000_000
    assert PricedDay(LIST, DAY_S * SECOND, from_s=5 * 3600).next_change_ns(0) == 10 * SECOND
    meter = Meter(DAY)
    meter.look(0, [(US, DEFAULT_POOL, 0), (EU, DEFAULT_POOL, 0)])
    tokens = 1_000_000
    figures = meter.figures(DAY_S * SECOND, [record(US, EU, 1, "acme", tokens), record(US, US, 1, "acme", tokens)])
    assert figures["days"] == 1
    assert figures["regions"]["us"]["egress"] == pytest.approx(4 * tokens * 360 / GIGABYTE)
    assert figures["regions"]["eu"]["egress"] == pytest.approx(2 * ANSWER_TOKEN_BYTES * tokens * 360 / GIGABYTE)
    assert figures["total"] == pytest.approx(figures["replicas"] + figures["egress"])


def test_tenants_bear_what_their_requests_took_of_each_regions_time() -> None:
    meter = Meter(DAY)
    meter.look(0, [(US, DEFAULT_POOL, 9)])
    figures = meter.figures(
        10 * SECOND, [record(US, US, 3, "acme"), record(EU, US, 1, "bolt"), record(US, US, 4, "acme")]
    )
    assert figures["tenants"] == {"acme": {"requests": 2, "replicas": 1.75}, "bolt": {"requests": 1, "replicas": 0.25}}
