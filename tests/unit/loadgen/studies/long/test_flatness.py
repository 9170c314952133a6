"""Growth is told from waver, restarts begin anew, and what grows with requests is counted per request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.studies.long.flatness import (
    Change,
    ProcessSample,
    StoredSample,
    change_of,
    change_per_request,
    long_lives,
    requests_between,
)


def stored(at_s: float, requests: int, size: int) -> StoredSample:
    return StoredSample(at_s, {"log": size}, requests)


def test_medians_of_the_second_and_last_quarter_are_compared() -> None:
    points = [(at / 10, 100.0 + (50.0 if at < 25 else 0.0)) for at in range(101)]
    assert change_of(points) == Change(100.0, 100.0), "what fills in the first quarter is no growth"
    outlier = [(at, 900.0 if at == 9.0 else value) for at, value in points]
    assert change_of(outlier).is_flat
    growing = change_of([(at / 10, 100.0 + at) for at in range(101)])
    assert growing.early == pytest.approx(137.5, abs=1)
    assert growing.late == pytest.approx(187.5, abs=1)
    assert not growing.is_flat


@pytest.mark.parametrize(("early", "late", "is_flat"), [
    (100.0, 105.0, True), (100.0, 105.1, False), (100.0, 95.0, True), (100.0, 94.9, False), (0.0, 0.0, True),
    (0.0, 1.0, False),
])  # fmt: skip
def test_flat_is_within_five_percent_either_way(early: float, late: float, is_flat: bool) -> None:
    assert Change(early, late).is_flat is is_flat


def test_bytes_are_counted_for_each_request_of_a_quarter() -> None:
    load = [*range(50), *range(50, 500, 9)]
    steady = [stored(at, load[at], 1000 + 700 * load[at]) for at in range(100)]
    assert change_per_request(steady, "log") == Change(700.0, 700.0)
    chatty = [stored(at, load[at], 700 * load[at] + (at > 80) * 9_000) for at in range(100)]
    assert not change_per_request(chatty, "log").is_flat
    with pytest.raises(ValueError, match="no request"):
        change_per_request([stored(at, 1, 1) for at in range(9)], "log")


def test_quarters_without_a_value_are_not_judged() -> None:
    with pytest.raises(ValueError, match="without a value"):
        change_of([(0.0, 1.0), (100.0, 1.0)])


def test_a_process_that_is_started_again_lives_anew_and_short_lives_are_left_out() -> None:
    samples = [ProcessSample(at, "gw", 1 if at < 120 else 2, 9, 9, 9) for at in range(0, 160, 2)]
    assert [life[0].pid for life in long_lives(samples)] == [1]
    assert [(life[0].at_s, life[-1].at_s) for life in long_lives(samples, 30.0)] == [(0, 118), (120, 158)]


def test_requests_of_a_life_are_those_from_quarter_to_quarter_of_the_process_itself() -> None:
    samples = [StoredSample(at, {}, 30 * at, {"gw": 10 * at}) for at in range(201)]
    life = [ProcessSample(at, "gw", 1, 9, 9, 9) for at in range(100, 181)]
    assert requests_between(samples, life) == 400
    assert requests_between(samples, [replace(each, name="controller") for each in life]) == 1200
    with pytest.raises(ValueError, match="no request"):
        requests_between([StoredSample(at, {}, 7) for at in range(200)], life)
    with pytest.raises(ValueError, match="no request"):
        requests_between([], life)
