"""Prices in force at each moment of the week."""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from gateway.core.features.prices.price_list import DAY_MINUTES, Hours, PriceList, Tariff
from gateway.core.vocabulary import PoolName, RegionName

DAY_S = 24 * 3600
SATURDAY_S = 1_774_656_000
"""Saturday, 28 March 2026, 00:00 UTC."""
MONDAY_S = SATURDAY_S + 2 * DAY_S

NIGHT = Hours(True, False, 0, 6 * 60, hour_micros=1_000_000)
WEEKEND = Hours(False, True, 0, DAY_MINUTES, hour_micros=2_000_000)
NOON = Hours(True, True, 10 * 60, 16 * 60, carbon_milligrams=100_000)
PER_USE = Tariff(RegionName("eu"), PoolName(""), 5_000_000, True, 16, 1000, 200, 400_000, (NIGHT, WEEKEND, NOON))
LIST = PriceList("EUR", "digest", (PER_USE,))


def hour_micros(moment_s: int, prices: PriceList = LIST) -> int:
    (price,) = prices.at(moment_s).replicas
    return price.hour_micros


def test_each_time_of_day_has_its_price_on_weekdays_and_on_weekends() -> None:
    assert hour_micros(MONDAY_S) == hour_micros(MONDAY_S + 6 * 3600 - 1) == 1_000_000
    assert hour_micros(MONDAY_S + 6 * 3600) == hour_micros(MONDAY_S + DAY_S - 1) == 5_000_000
    assert hour_micros(SATURDAY_S) == hour_micros(MONDAY_S - 1) == 2_000_000
    assert hour_micros(SATURDAY_S - 1) == 5_000_000


def test_days_before_1970_and_far_ahead_are_of_the_same_week() -> None:
    weeks_s = 7 * DAY_S * 5_000
    assert hour_micros(SATURDAY_S - weeks_s) == hour_micros(SATURDAY_S + weeks_s) == 2_000_000


def test_the_grid_changes_what_work_emits_beyond_idling() -> None:
    owned = dataclasses.replace(LIST, tariffs=(replace(PER_USE, is_per_use=False),))
    (day,), (noon,) = owned.at(MONDAY_S + 8 * 3600).replicas, owned.at(MONDAY_S + 12 * 3600).replicas
    assert (day.busy_milligrams, day.idle_milligrams) == (800 * 400, 200 * 400)
    assert (noon.busy_milligrams, noon.idle_milligrams) == (800 * 100, 200 * 100)
    (by_use,) = LIST.at(MONDAY_S + 8 * 3600).replicas
    assert (by_use.busy_milligrams, by_use.idle_milligrams) == (1000 * 400, 0)


def test_the_next_change_is_when_something_else_is_in_force_and_not_when_an_hour_merely_ends() -> None:
    assert LIST.next_change_s(MONDAY_S) == MONDAY_S + 6 * 3600
    assert LIST.next_change_s(MONDAY_S + 16 * 3600) == MONDAY_S + DAY_S
    assert LIST.next_change_s(SATURDAY_S + 16 * 3600) == SATURDAY_S + DAY_S + 10 * 3600
    idle = dataclasses.replace(LIST, tariffs=(replace(PER_USE, hours=(replace(NIGHT, hour_micros=5_000_000),)),))
    assert idle.next_change_s(MONDAY_S) is None
    assert dataclasses.replace(LIST, tariffs=(replace(PER_USE, hours=()),)).next_change_s(MONDAY_S) is None


def test_a_span_is_cut_where_prices_change_and_nothing_of_it_is_lost() -> None:
    spans = list(LIST.spans(MONDAY_S + 3600, MONDAY_S + DAY_S))
    assert [(end_s - begin_s) // 3600 for begin_s, end_s, _ in spans] == [5, 4, 6, 8]
    assert (spans[0][0], spans[-1][1]) == (MONDAY_S + 3600, MONDAY_S + DAY_S)
    assert all(prices == LIST.at(begin_s) for begin_s, _, prices in spans)


def test_hours_overlap_only_if_they_say_the_same_thing_of_the_same_time() -> None:
    assert NIGHT.overlaps(replace(NIGHT, from_minute=5 * 60))
    assert not NIGHT.overlaps(replace(NIGHT, from_minute=6 * 60, until_minute=7 * 60))
    assert not NIGHT.overlaps(WEEKEND)
    assert not NIGHT.overlaps(replace(NIGHT, hour_micros=None, carbon_milligrams=1))
