"""Plans, checked against a queue of lines that is played in virtual time."""

from __future__ import annotations

import heapq
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from gateway.features.batches.outlook import BatchOutlook, PlaceShare, RegionOutlook
from gateway.features.batches.planning import BatchPlan, FileWork, PlannedRegion, Spending, WindowAnswer, plan_of

MS = 1_000_000
DAY_S = 86_400
near: Any = pytest.approx
HERE, THERE = "here", "there"


class Price(Struct, frozen=True):
    money: float
    adds: float


class Span(Struct, frozen=True):
    from_s: int
    until_s: int
    costs: dict[str, Price]


def region(name: str = HERE, lines: int = 10, token_ms: float | None = 1.0) -> RegionOutlook:
    """Region where a line of a thousand tokens takes a second."""
    return RegionOutlook(name, lines, *(2 * [None if token_ms is None else token_ms * MS]))


def outlook(*regions: RegionOutlook, **changes: Any) -> BatchOutlook:
    told: dict[str, Any] = {
        "region": HERE,
        "file_bytes_max": 10**9,
        "lines_max": 50_000,
        "line_bytes_max": 10**6,
        "output_tokens_reserved": 1024,
        "lines_at_once": 32,
        "shares": [PlaceShare(0.0, 1.0)],
        "unknown_ahead": 0,
        "knows_model": True,
        "regions": list(regions or [region()]),
    }
    return BatchOutlook(**(told | changes))


def lines(count: int) -> FileWork:
    """Lines of a thousand tokens each."""
    return FileWork(count, 900 * count, 100.0 * count)


def plan(told: BatchOutlook, work: FileWork, *costs: Span, window_s: int = DAY_S) -> BatchPlan:
    return plan_of(told, work, work, costs, now_s=0, window_s=window_s)


def played_s(count: int, slots: dict[str, int], line_s: dict[str, float]) -> float:
    """Time at which the last of the lines ends, if each takes the slot that is free first."""
    free = [(0.0, name) for name, number in slots.items() for _ in range(number)]
    heapq.heapify(free)
    ends_s = [0.0]
    for _ in range(count):
        at_s, name = heapq.heappop(free)
        heapq.heappush(free, (at_s + line_s[name], name))
        ends_s.append(at_s + line_s[name])
    return max(ends_s)


@given(st.integers(1, 500), st.integers(1, 16), st.integers(0, 16), st.floats(0.1, 10), st.floats(0.1, 10))
def test_the_end_is_that_of_lines_in_free_slots(count: int, near: int, far: int, near_s: float, far_s: float) -> None:
    told = outlook(region(HERE, near, near_s), region(THERE, far, far_s))
    finish_s = plan(told, lines(count)).finish_s
    assert finish_s is not None
    last_s = played_s(count, {HERE: near, THERE: far}, {HERE: near_s, THERE: far_s})
    assert finish_s <= last_s + max(near_s, far_s)
    assert last_s <= finish_s + max(near_s, far_s)


def test_places_bound_the_lines_at_once() -> None:
    assert plan(outlook(region(lines=100)), lines(640)).finish_s == near(20)


def test_a_few_lines_take_as_long_as_one() -> None:
    assert plan(outlook(), lines(5)).finish_s == near(1)


def test_batches_before_it_come_first() -> None:
    told = outlook(shares=[PlaceShare(0.0, 0.0), PlaceShare(100.0, 0.5), PlaceShare(110.0, 1.0)])
    found = plan(told, lines(100))
    assert (found.begins_s, found.finish_s) == (100.0, near(115))


@pytest.mark.parametrize(
    ("limits", "finish_s"),
    [
        ({"requests_per_minute": 60}, 1_000),
        ({"tokens_per_minute": 120_000}, 500),
        ({"own_requests_max": 4}, 250),
        ({"requests_per_minute": 10**6, "tokens_per_minute": 10**9, "own_requests_max": 64}, 100),
    ],
)
def test_limits_of_the_client_hold(limits: dict[str, int], finish_s: float) -> None:
    assert plan(outlook(**limits), lines(1_000)).finish_s == near(finish_s)


@pytest.mark.parametrize(("window_s", "answer"), [(101, WindowAnswer.KEPT), (99, WindowAnswer.MISSED)])
def test_the_window_is_compared_with_the_end(window_s: int, answer: WindowAnswer) -> None:
    assert plan(outlook(), lines(1_000), window_s=window_s).answer is answer


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (outlook(region(token_ms=None)), "pace of the model"),
        (outlook(region(lines=0)), "engines are idle"),
        (outlook(unknown_ahead=2, shares=[PlaceShare(0.0, 0.0), PlaceShare(DAY_S, 1.0)]), "2 batches before it"),
    ],
)
def test_what_is_not_known_is_told(told: BatchOutlook, words: str) -> None:
    found = plan(told, lines(10))
    assert found.answer is WindowAnswer.UNKNOWN
    assert [words in each for each in found.not_known] == [True]


def test_a_window_that_is_kept_after_all_that_is_not_known_is_kept() -> None:
    assert plan(outlook(unknown_ahead=1), lines(10)).answer is WindowAnswer.KEPT


def test_the_longest_answers_end_later() -> None:
    found = plan_of(outlook(), lines(100), FileWork(100, 90_000, 110_000.0), (), now_s=0, window_s=DAY_S)
    assert (found.finish_s, found.latest_finish_s) == (near(10), near(20))


# Money


def span(from_s: int, until_s: int, **adds: float) -> Span:
    return Span(from_s, until_s, {name: Price(2 * money, money) for name, money in adds.items()})


def parts(found: BatchPlan) -> Any:
    return [(each.region, each.from_s, each.until_s, each.lines) for each in found.cheapest]


def test_without_prices_no_cost_is_told() -> None:
    found = plan(outlook(), lines(10))
    assert (found.spending, found.cheapest, found.cheapest_spending) == (None, [], None)
    assert found.regions == [PlannedRegion(HERE, 10, 1.0, near(1))]


def test_the_expected_cost_is_by_the_regions_shares() -> None:
    told = outlook(region(HERE, 10), region(THERE, 10, 3.0))
    found = plan(told, lines(400), span(0, DAY_S, here=4.0, there=8.0))
    assert [(each.share, each.finish_s) for each in found.regions] == [
        (near(0.75), near(40)),
        (near(0.25), near(120)),
    ]
    assert found.spending == Spending(near(10), near(5))


def test_the_cheapest_region_is_filled_first() -> None:
    told = outlook(region(HERE, 10), region(THERE, 10))
    cheap = plan(told, lines(1_000), span(0, 100, here=4.0, there=1.0), window_s=100)
    assert parts(cheap) == [(THERE, 0, near(100), 1_000)]
    assert cheap.cheapest_spending == Spending(near(2), near(1))
    tight = plan(told, lines(1_000), span(0, 80, here=4.0, there=1.0), window_s=80)
    assert parts(tight) == [(HERE, 0, near(20), 200), (THERE, 0, near(80), 800)]
    assert tight.cheapest_spending == Spending(near(3.2), near(1.6))


def test_the_cheapest_plan_keeps_the_clients_limits_over_all_regions() -> None:
    told = outlook(region(HERE, 10), region(THERE, 10), requests_per_minute=300)
    assert plan(told, lines(1_000), span(0, 199, here=4.0, there=1.0), window_s=199).cheapest == []
    found = plan(told, lines(1_000), span(0, 201, here=4.0, there=1.0), window_s=201)
    assert parts(found) == [(THERE, 0, near(200), 1_000)]


def test_a_cheaper_hour_is_waited_for() -> None:
    found = plan(outlook(), lines(1_000), span(0, 3_600, here=4.0), span(3_600, 7_200, here=1.0), window_s=7_200)
    assert parts(found) == [(HERE, 3_600, near(3_700), 1_000)]


def test_a_file_that_does_not_fit_in_has_no_cheapest_plan() -> None:
    found = plan(outlook(), lines(1_000), span(0, 99, here=1.0), window_s=99)
    assert (found.answer, found.cheapest) == (WindowAnswer.MISSED, [])
    assert found.spending == Spending(near(2), near(1))


def test_a_region_without_a_price_is_in_no_cheapest_plan() -> None:
    told = outlook(region(HERE, 10), region(THERE, 10))
    found = plan(told, lines(100), span(0, DAY_S, here=4.0))
    assert (found.spending, parts(found)) == (None, [(HERE, 0, near(10), 100)])
    assert [each.adds for each in found.regions] == [near(4), None]


@given(
    st.integers(1, 2_000),
    st.lists(st.tuples(st.integers(0, 20), st.floats(0.1, 5), st.floats(0, 9)), min_size=1, max_size=4),
    st.lists(st.integers(1, 200), min_size=1, max_size=4),
    st.integers(1, 64),
)
def test_the_cheapest_plan_has_all_lines_within_room_and_places(
    count: int, regions: list[tuple[int, float, float]], lengths: list[int], places: int
) -> None:
    told = outlook(
        *(region(f"r{at}", room, token_ms) for at, (room, token_ms, _) in enumerate(regions)), lines_at_once=places
    )
    costs, at_s = [], 0
    for turn, length in enumerate(lengths):
        adds = {f"r{at}": money * (1 + turn % 2) for at, (*_, money) in enumerate(regions)}
        costs.append(span(at_s, at_s + length, **adds))
        at_s += length
    found = plan(told, lines(count), *costs, window_s=at_s)
    if not found.cheapest:
        return
    assert sum(each.lines for each in found.cheapest) == near(count, abs=len(found.cheapest))
    for each in found.cheapest:
        room, token_ms, _ = regions[int(each.region[1:])]
        busy_s = (each.lines - 0.5) * token_ms
        assert busy_s <= min(room, places) * (each.until_s - each.from_s) + 1e-6
        assert 0 <= each.from_s <= each.until_s <= at_s + 1e-6
    if found.spending is not None and found.finish_s is not None and found.finish_s <= at_s and len(lengths) == 1:
        assert found.cheapest_spending is not None
        assert found.cheapest_spending.adds <= found.spending.adds * (1 + 1e-9) + 1e-9
