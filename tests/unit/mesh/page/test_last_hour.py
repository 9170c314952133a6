from __future__ import annotations

from math import isnan
from typing import Any

import msgspec
import pytest

from mesh.page.last_hour import (
    BYTES_MAX,
    INTERVAL_NS,
    REGIONS_MAX,
    SAMPLES_MAX,
    SERIES,
    ByRegion,
    LastHour,
    quantile_s,
)
from mesh.totals import FIRST_TOKEN_BOUNDS_S, Totals

BUCKETS = len(FIRST_TOKEN_BOUNDS_S) + 1
SECOND_MS = 1000


def at(**buckets: int) -> tuple[int, ...]:
    """Buckets with counts at `b<index>`."""
    return tuple(buckets.get(f"b{index}", 0) for index in range(BUCKETS))


def told(hour: LastHour, began_ms: int = 0) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.json.decode(bytes(hour.shown(began_ms)))
    return document


def after(looks: int, *counted: ByRegion) -> LastHour:
    """An hour that has looked at each of these, one interval apart, and at the last for the rest of `looks`."""
    hour = LastHour()
    for look in range(looks):
        hour.look(counted[min(look, len(counted) - 1)], (look + 1) * INTERVAL_NS)
    return hour


def test_rates_are_the_growth_of_the_counters_over_the_time_between_two_looks() -> None:
    first = Totals(100, 10, 50, at(b3=7), 2)
    then = Totals(130, 13, 56, at(b3=17), 4)
    shown = told(after(2, {"us": {"us-1": first}}, {"us": {"us-1": then}}), began_ms=1_000)
    assert shown["times_ms"] == [1_000 + 30 * SECOND_MS]
    us = shown["regions"]["us"]
    assert (us["requests"], us["errors"], us["forwards"], us["waiting"]) == ([2.0], [0.2], [0.4], [4.0])
    assert us["first_token_p50"] == [pytest.approx(0.075)], "the middle of the bucket from 50 to 100 ms"
    assert us["first_token_p99"] == [pytest.approx(0.0995)]


def test_gateways_of_a_region_are_summed_and_their_quantiles_are_those_of_all_streams() -> None:
    begun = {"us": {"us-1": Totals(), "us-2": Totals()}}
    grown = {"us": {"us-1": Totals(30, first_tokens=at(b0=98)), "us-2": Totals(15, first_tokens=at(b7=2), waiting=3)}}
    us = told(after(2, begun, grown))["regions"]["us"]
    assert (us["requests"], us["waiting"]) == ([3.0], [3.0])
    assert us["first_token_p50"][0] < 0.01
    assert 1 < us["first_token_p99"][0] < 2.5, "the mean of two p99s would be neither"


def test_a_process_that_starts_anew_counts_from_zero_and_never_backwards() -> None:
    before, now = Totals(1_000, 50, 400, at(b3=900)), Totals(15, 0, 0, at(b3=10))
    us = told(after(2, {"us": {"us-1": before}}, {"us": {"us-1": now}}))["regions"]["us"]
    assert (us["requests"], us["errors"], us["forwards"]) == ([1.0], [0.0], [0.0])


def test_a_gateway_that_comes_later_adds_only_what_it_counted_since() -> None:
    alone = {"us": {"us-1": Totals(10)}}
    joined = {"us": {"us-1": Totals(25), "us-2": Totals(9_000)}, "eu": {"eu-1": Totals(7, waiting=1)}}
    further = {"us": {"us-1": Totals(25), "us-2": Totals(9_030)}, "eu": {"eu-1": Totals(22)}}
    shown = told(after(3, alone, joined, further))
    assert shown["regions"]["us"]["requests"] == [1.0, 2.0]
    assert shown["regions"]["eu"]["requests"] == [None, 1.0]
    assert shown["regions"]["eu"]["waiting"] == [1.0, 0.0]


def test_a_region_that_is_not_heard_has_a_gap() -> None:
    heard = {"us": {"us-1": Totals(15)}}
    shown = told(after(4, heard, heard, {}, heard))
    assert shown["regions"]["us"]["requests"] == [0.0, None, None], "and two samples are needed again after it"


def test_without_streams_there_is_no_quantile() -> None:
    us = told(after(2, {"us": {"us-1": Totals()}}))["regions"]["us"]
    assert us["first_token_p50"] == us["first_token_p99"] == [None]


def test_buckets_with_other_bounds_are_left_out() -> None:
    odd = {"us": {"us-1": Totals(first_tokens=(0, 0))}}, {"us": {"us-1": Totals(1, first_tokens=(4, 4))}}
    assert told(after(2, *odd))["regions"]["us"]["first_token_p50"] == [None]


def test_an_hour_is_kept_within_its_bytes() -> None:
    every = {f"region-{index}": {f"gateway-{index}": Totals(1)} for index in range(REGIONS_MAX + 9)}
    hour = after(SAMPLES_MAX + 30, every)
    assert hour.size_bytes == BYTES_MAX
    shown = told(hour)
    assert len(shown["times_ms"]) == SAMPLES_MAX
    assert shown["times_ms"][-1] - shown["times_ms"][0] == (SAMPLES_MAX - 1) * INTERVAL_NS // 1_000_000
    assert len(shown["regions"]) == REGIONS_MAX
    assert {len(series) for region in shown["regions"].values() for series in region.values()} == {SAMPLES_MAX}
    assert after(SAMPLES_MAX + 1, {"us": {"us-1": Totals()}}).size_bytes < 8_000


def test_a_region_that_was_not_heard_for_an_hour_is_forgotten() -> None:
    both = {"us": {"us-1": Totals()}, "eu": {"eu-1": Totals()}}
    one = {"us": {"us-1": Totals()}}
    assert set(told(after(SAMPLES_MAX + 1, both, one))["regions"]) == {"us"}
    assert set(told(after(SAMPLES_MAX, both, both, one))["regions"]) == {"us", "eu"}


def test_a_sample_is_due_an_interval_after_the_last_one() -> None:
    hour = LastHour()
    assert hour.is_due(0)
    hour.look({}, 5)
    assert not hour.is_due(INTERVAL_NS + 4)
    assert hour.is_due(INTERVAL_NS + 5)


def test_what_is_shown_is_encoded_once_for_each_sample() -> None:
    hour = after(2, {"us": {"us-1": Totals()}})
    assert hour.shown(0) is hour.shown(0)
    before = hour.shown(0)
    hour.look({"us": {"us-1": Totals()}}, 3 * INTERVAL_NS)
    assert hour.shown(0) is not before
    assert set(told(hour)["regions"]["us"]) == set(SERIES)


@pytest.mark.parametrize(
    ("buckets", "share", "expected"),
    [
        (at(b0=1), 0.5, 0.005),
        (at(b0=1, b6=1), 0.5, 0.01),
        (at(b0=1, b6=1), 0.99, 0.99),
        (at(b13=5), 0.5, 120.0),
    ],
)
def test_quantiles_are_interpolated_as_prometheus_does(buckets: tuple[int, ...], share: float, expected: float) -> None:
    assert quantile_s(buckets, share) == pytest.approx(expected)


def test_no_times_have_no_quantile() -> None:
    assert isnan(quantile_s(at(), 0.5))
    assert isnan(quantile_s((), 0.5))
