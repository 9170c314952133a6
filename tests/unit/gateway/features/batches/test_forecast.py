from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.vocabulary import TenantName
from gateway.features.batches.forecast import (
    LineRate,
    Urgency,
    expected_end_s,
    has_time_to_spare,
    may_be_urgent,
    urgent_lines,
)

SECOND_NS = 1_000_000_000
DAY_S = 86_400
LINES = st.integers(0, 1_000_000)
RATES = st.floats(0, 1_000)
LEFT_S = st.integers(-DAY_S, DAY_S)
MOST = st.integers(0, 100)


@given(LINES, RATES, LEFT_S, MOST)
def test_urgent_lines_are_within_their_share(left: int, rate: float, left_s: int, most: int) -> None:
    assert 0 <= urgent_lines(left, rate, left_s, DAY_S, most) <= most


@given(LINES, LINES, RATES, LEFT_S, MOST)
def test_more_lines_left_are_no_less_urgent(one: int, other: int, rate: float, left_s: int, most: int) -> None:
    few, many = sorted((one, other))
    assert urgent_lines(few, rate, left_s, DAY_S, most) <= urgent_lines(many, rate, left_s, DAY_S, most)


@given(LINES, RATES, RATES, LEFT_S, MOST)
def test_a_higher_rate_is_no_more_urgent(left: int, one: float, other: float, left_s: int, most: int) -> None:
    low, high = sorted((one, other))
    assert urgent_lines(left, high, left_s, DAY_S, most) <= urgent_lines(left, low, left_s, DAY_S, most)


@given(LINES, RATES, st.integers(1, DAY_S), st.integers(1, DAY_S), MOST)
def test_a_nearer_end_is_no_less_urgent(left: int, rate: float, one: int, other: int, most: int) -> None:
    near, far = sorted((one, other))
    assert urgent_lines(left, rate, far, DAY_S, most) <= urgent_lines(left, rate, near, DAY_S, most)


@given(LINES, RATES, LEFT_S, st.integers(1, 100))
def test_a_batch_is_urgent_if_and_only_if_its_near_window_would_be_missed(
    left: int, rate: float, left_s: int, most: int
) -> None:
    is_near = 0 < left_s <= DAY_S / 4
    is_short = left > 0 and rate * left_s * 0.9 < left
    assert (urgent_lines(left, rate, left_s, DAY_S, most) > 0) == (is_near and is_short)


def test_the_share_grows_with_what_is_missing() -> None:
    told = [urgent_lines(1_000, rate, 1_000, DAY_S, 8) for rate in (0, 0.25, 0.5, 1, 1.2)]
    assert told == [8, 7, 5, 1, 0]


@pytest.mark.parametrize(
    ("left", "rate", "left_s", "lines"),
    [(100, 0.0, DAY_S // 4 + 1, 0), (100, 0.0, DAY_S // 4, 8), (900, 1.0, 1_000, 0), (901, 1.0, 1_000, 1)],
)
def test_only_the_last_quarter_is_near_and_a_tenth_of_it_is_left_over(
    left: int, rate: float, left_s: int, lines: int
) -> None:
    assert urgent_lines(left, rate, left_s, DAY_S, 8) == lines


@given(st.lists(st.tuples(st.integers(0, 600 * SECOND_NS), st.integers(0, 100)), min_size=1, max_size=30))
def test_a_rate_lies_within_those_that_it_is_made_of(steps: list[tuple[int, int]]) -> None:
    rate, now_ns = LineRate(0), 0
    for wait_ns, lines in steps:
        now_ns += wait_ns
        rate.add(lines, now_ns)
    now_ns += SECOND_NS
    assert 0 <= rate.per_second(now_ns) <= sum(lines for _, lines in steps) / 0.99


def test_a_steady_rate_is_told_and_a_stop_is_noticed() -> None:
    rate = LineRate(0)
    for second in range(1, 3_601):
        rate.add(5, second * SECOND_NS)
    assert rate.per_second(3_600 * SECOND_NS) == pytest.approx(5, rel=0.01)
    assert rate.per_second(5_400 * SECOND_NS) == pytest.approx(5 * 2.7183**-6, rel=0.05)
    assert LineRate(7).per_second(7) == 0


def test_a_rate_is_known_once_the_batch_has_run_for_a_minute() -> None:
    assert [LineRate(0).is_known(seconds * SECOND_NS) for seconds in (0, 50, 75)] == [False, False, True]


@pytest.mark.parametrize(("lines_left", "has_time"), [(1_700, True), (1_900, False), (0, True)])
def test_half_of_the_time_left_is_time_to_spare(lines_left: int, has_time: bool) -> None:
    rate = LineRate(0)
    for second in range(1, 3_601):
        rate.add(1, second * SECOND_NS)
    assert has_time_to_spare(lines_left, rate, 3_600.0, 3_600 * SECOND_NS) == has_time


def test_a_batch_that_has_just_begun_has_time_to_spare() -> None:
    assert has_time_to_spare(1_000_000, LineRate(0), 60.0, 50 * SECOND_NS)
    assert not has_time_to_spare(1_000_000, LineRate(0), 60.0, 75 * SECOND_NS)


def urgency(tenant: str, running: int, wanted: int) -> Urgency:
    return Urgency(TenantName(tenant), running, wanted)


class TestUrgency:
    def test_no_more_than_a_batch_wants(self) -> None:
        assert may_be_urgent("a", {"a": urgency("t", 1, 2)}, 8)
        assert not may_be_urgent("a", {"a": urgency("t", 2, 2)}, 8)
        assert not may_be_urgent("a", {"a": urgency("t", 0, 0)}, 8)

    def test_no_more_than_all_may_have(self) -> None:
        others = {"b": urgency("u", 3, 3)}
        assert may_be_urgent("a", {"a": urgency("t", 0, 3)} | others, 4)
        assert not may_be_urgent("a", {"a": urgency("t", 0, 3)} | others, 3)
        assert not may_be_urgent("a", {"a": urgency("t", 0, 3)}, 0)

    @pytest.mark.parametrize(("most", "tenants", "share"), [(3, 1, 3), (3, 2, 2), (3, 3, 1), (3, 4, 1), (12, 5, 3)])
    def test_tenants_that_want_some_share_them(self, most: int, tenants: int, share: int) -> None:
        others = {f"b{number}": urgency(f"u{number}", 0, 1) for number in range(1, tenants)}
        others["idle"] = urgency("idle", 0, 0)
        own = {"a": urgency("t", share - 1, most), "second": urgency("t", 0, most)}
        assert may_be_urgent("a", own | others, most)
        own["second"] = urgency("t", 1, most)
        assert not may_be_urgent("a", own | others, most)


@pytest.mark.parametrize(
    ("left", "rate", "expected"), [(10, 2.0, 105), (0, 0.0, 100), (1, 0.0, None), (10, 3.0, 104), (10, 1e-12, None)]
)
def test_the_end_is_expected_by_the_rate(left: int, rate: float, expected: int | None) -> None:
    assert expected_end_s(left, rate, 100) == expected
