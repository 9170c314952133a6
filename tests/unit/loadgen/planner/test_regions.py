from __future__ import annotations

import pytest

from loadgen.planner.regions import PoolNeed, region_fleets, region_load, together_per_s

DAY = tuple((float(hour), 100.0 if hour == 12 else 10.0) for hour in range(24))
"""Rates of a day with one busy hour at noon."""
POOLS = (PoolNeed("short", 0.9, 9.0), PoolNeed("long", 0.1, 0.5), PoolNeed("none", 0.0, 1.0))


def test_without_a_day_a_region_s_peak_holds_all_day() -> None:
    load = region_load("us", 50.0)
    assert set(load.rates_per_s) == {50.0}


def test_peaks_at_different_hours_need_fewer_together() -> None:
    loads = [region_load(name, 100.0, ahead, DAY) for name, ahead in (("us", 0.0), ("eu", 6.0), ("ap", 12.0))]
    assert all(load.peak_per_s == pytest.approx(100.0) for load in loads)
    assert together_per_s(loads) == pytest.approx(120.0)
    fleets = region_fleets(loads, POOLS)
    assert fleets.by_region["us"] == {"short": 10, "long": 20, "none": 0}
    assert fleets.local_instances == 90
    assert fleets.pooled == {"short": 12, "long": 24, "none": 0}
    assert fleets.pooled_instances == 36


def test_peaks_at_one_hour_gain_nothing_but_rounding() -> None:
    loads = [region_load("us", 100.0, 0.0, DAY), region_load("eu", 100.0, 0.0, DAY)]
    fleets = region_fleets(loads, POOLS)
    assert fleets.pooled_instances == fleets.local_instances == 60


def test_no_region_has_no_peak() -> None:
    assert together_per_s([]) == 0
