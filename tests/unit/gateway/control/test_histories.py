from __future__ import annotations

from gateway.control.histories import INTERVAL_NS, POOLS_MAX, HistoryOffer, HistorySchedule
from gateway.core.vocabulary import GatewayId
from tests.support.histories import history_of


def offer(added: int, pool: str = "pd") -> HistoryOffer:
    return HistoryOffer(GatewayId("us-1"), pool, added, history_of)


def test_the_first_is_sent_at_once_and_the_next_a_minute_later_if_it_is_new() -> None:
    schedule = HistorySchedule()
    assert schedule.due([offer(0)], 0) == [], "nothing is recorded"
    assert [each.added for each in schedule.due([offer(5)], 1)] == [5]
    assert schedule.due([offer(6)], INTERVAL_NS) == []
    assert [each.added for each in schedule.due([offer(6)], INTERVAL_NS + 1)] == [6]
    assert schedule.due([offer(6)], 5 * INTERVAL_NS) == []


def test_a_short_history_is_sent_again_whenever_it_has_doubled() -> None:
    schedule = HistorySchedule()
    sent = [each.added for added in range(10_000) for each in schedule.due([offer(added)], 0)]
    assert sent == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]


def test_a_pool_that_comes_back_is_sent_at_once() -> None:
    schedule = HistorySchedule()
    assert schedule.due([offer(5)], 0)
    assert schedule.due([], 1) == []
    assert schedule.due([offer(7)], 2)


def test_no_more_pools_than_the_bound_are_sent() -> None:
    schedule = HistorySchedule()
    assert len(schedule.due([offer(1, f"p{number}") for number in range(POOLS_MAX + 5)], 0)) == POOLS_MAX
