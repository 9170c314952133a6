"""Plans, checked against a queue of lines that is played in virtual time."""

from __future__ import annotations

import heapq
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.features.batches.outlook import BatchOutlook, PlaceShare, RegionOutlook
from gateway.features.batches.planning import BatchPlan, FileWork, WindowAnswer, plan_of
from gateway.features.prices.work_costs import CostSpan, WorkCost
from tests.support.batch_outlooks import outlook_of

MS = 1_000_000
DAY_S = 86_400
near: Any = pytest.approx
HERE, THERE = "here", "there"


def region(name: str = HERE, lines: int = 10, token_ms: float | None = 1.0) -> RegionOutlook:
    """Region where a line of a thousand tokens takes a second."""
    return RegionOutlook(name, lines, *(2 * [None if token_ms is None else token_ms * MS]))


def outlook(*regions: RegionOutlook, **changes: Any) -> BatchOutlook:
    return outlook_of(**({"regions": list(regions or [region()])} | changes))


def lines(count: int) -> FileWork:
    """Lines of a thousand tokens each."""
    return FileWork(count, 900 * count, 100.0 * count)


def plan(told: BatchOutlook, work: FileWork, *costs: CostSpan, window_s: int = DAY_S) -> BatchPlan:
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
    told = outlook(shares=[PlaceShare(0.0, 0.0, 0.0), PlaceShare(100.0, 0.5, 0.5), PlaceShare(110.0, 1.0, 1.0)])
    found = plan(told, lines(100))
    assert (found.begins_s, found.finish_s) == (100.0, near(115))


@pytest.mark.parametrize(("places", "room", "finish_s"), [(0.5, 1.0, 10), (0.25, 1.0, 20), (1.0, 0.25, 40)])
def test_shares_of_places_and_of_room_bound_the_lines_at_once(places: float, room: float, finish_s: float) -> None:
    told = outlook(lines_at_once=20, shares=[PlaceShare(0.0, places, room)])
    assert plan(told, lines(100)).finish_s == near(finish_s)


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
        (outlook(regions=[]), "where the model is served"),
        (outlook(waits_for_unknown=True, shares=[PlaceShare(DAY_S, 1.0, 1.0)]), "batches before it"),
    ],
)
def test_what_is_not_known_is_told(told: BatchOutlook, words: str) -> None:
    found = plan(told, lines(10))
    assert found.answer is WindowAnswer.UNKNOWN
    assert [words in each for each in found.not_known] == [True]


def test_a_window_that_is_kept_after_all_that_is_not_known_is_kept() -> None:
    assert plan(outlook(waits_for_unknown=True), lines(10)).answer is WindowAnswer.KEPT


def test_the_longest_answers_end_later() -> None:
    found = plan_of(outlook(), lines(100), FileWork(100, 90_000, 110_000.0), (), now_s=0, window_s=DAY_S)
    assert (found.finish_s, found.latest_finish_s) == (near(10), near(20))


# Money


def span(from_s: int, until_s: int, **adds: float) -> CostSpan:
    return CostSpan(from_s, until_s, {name: WorkCost(2 * money, money) for name, money in adds.items()})


def test_without_prices_no_cost_is_told() -> None:
    found = plan(outlook(), lines(10))
    assert ([(each.finish_s, each.money, each.adds) for each in found.regions], found.cheapest) == (
        [(near(1), None, None)],
        None,
    )


@pytest.mark.parametrize(
    ("window_s", "adds", "cheapest"),
    [
        (DAY_S, {"here": 4.0, "there": 1.0}, THERE),
        (90, {"here": 4.0, "there": 1.0}, HERE),
        (30, {"here": 4.0, "there": 1.0}, None),
        (DAY_S, {"here": 4.0}, HERE),
    ],
)
def test_the_cheapest_region_is_one_that_alone_keeps_the_window(
    window_s: int, adds: dict[str, float], cheapest: str | None
) -> None:
    """Four hundred lines take 40 s here, 120 s there, and 30 s in both regions together."""
    found = plan(outlook(region(HERE), region(THERE, 10, 3.0)), lines(400), span(0, DAY_S, **adds), window_s=window_s)
    assert (found.finish_s, found.cheapest) == (near(30), cheapest)
    there = adds.get(THERE)
    assert [(each.finish_s, each.adds) for each in found.regions] == [(near(40), 4), (near(120), there)]
    assert [each.money for each in found.regions] == [8, None if there is None else 2 * there]


@pytest.mark.parametrize(("change_s", "adds"), [(25, 1.75), (200, 4), (0, 1)])
def test_costs_are_those_of_the_time_at_which_the_file_runs(change_s: int, adds: float) -> None:
    costs = [span(0, change_s, here=4.0), span(change_s, DAY_S, here=1.0)]
    (found,) = plan(outlook(), lines(1_000), *costs).regions
    assert (found.adds, found.money) == (near(adds), near(2 * adds))


def test_prices_behind_the_window_are_those_of_its_end() -> None:
    (found,) = plan(outlook(), lines(1_000), span(0, 10, here=4.0), span(10, 20, here=1.0), window_s=20).regions
    assert (found.finish_s, found.adds) == (near(100), near(0.1 * 4 + 0.9))
