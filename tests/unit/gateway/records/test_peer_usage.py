from __future__ import annotations

from itertools import permutations

import pytest

from gateway.core.vocabulary import GatewayId
from gateway.records.peer_usage import NOTHING, BudgetUse, OthersUsage, OthersUsed

US, EU = GatewayId("us-1"), GatewayId("eu-1")
NAME = ("key", "team-a")
TODAY = "2026-11-22"


def use(in_day: int, in_month: int, day: str = TODAY, set_aside: int = 0) -> BudgetUse:
    return BudgetUse(NAME, day, in_day, in_month, set_aside)


def test_what_all_others_used_is_summed() -> None:
    others = OthersUsage()
    assert others.used(NAME, TODAY) is NOTHING
    others.hear(US, use(3, 10, set_aside=5))
    others.hear(EU, use(4, 40))
    assert others.used(NAME, TODAY) == OthersUsed(7, 50, 5)
    assert others.used(("tenant", "team-a"), TODAY) == OthersUsed(0, 0, 0)


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_however_late_or_often_words_come_the_largest_of_each_day_holds(order: tuple[int, ...]) -> None:
    words = (use(9, 30, "2026-11-21"), use(1, 31), use(5, 35), use(5, 35))
    others = OthersUsage()
    for at in order:
        others.hear(US, words[at])
    assert others.used(NAME, TODAY)[:2] == (5, 35)


def test_a_day_and_a_month_that_are_over_count_no_more() -> None:
    others = OthersUsage()
    others.hear(US, use(5, 50))
    assert others.used(NAME, "2026-11-23")[:2] == (0, 50)
    assert others.used(NAME, "2026-12-01")[:2] == (0, 0)


def test_whoever_is_already_in_the_next_day_counts() -> None:
    others = OthersUsage()
    others.hear(US, use(5, 50))
    others.hear(US, use(1, 1, "2026-12-01"))
    assert others.used(NAME, "2026-11-30")[:2] == (1, 1)
    others.hear(US, use(9, 90))
    assert others.used(NAME, "2026-12-01")[:2] == (1, 1), "the last word of a month that is over"


def test_what_ran_at_one_that_fell_silent_is_not_known_any_more() -> None:
    others = OthersUsage()
    others.hear(US, use(5, 50, set_aside=7))
    assert others.fell_silent(EU) == []
    assert others.fell_silent(US) == [NAME]
    assert others.used(NAME, TODAY) == OthersUsed(5, 50, 0)


def test_what_is_remembered_is_not_written_again_and_what_is_new_is() -> None:
    others = OthersUsage()
    others.remember({(US, NAME): use(5, 50, set_aside=7)})
    assert others.used(NAME, TODAY) == OthersUsed(5, 50, 0)
    assert others.take_unwritten() == {}
    others.hear(US, use(5, 50, set_aside=1))
    assert others.take_unwritten() == {}
    others.hear(US, use(6, 51))
    unwritten = others.take_unwritten()
    assert unwritten == {(US, NAME): use(6, 51)}
    others.hear(US, use(7, 52))
    others.give_back(unwritten)
    assert others.take_unwritten() == {(US, NAME): use(7, 52)}


def test_there_is_no_room_for_ever_more_of_them() -> None:
    others = OthersUsage(told_max=2)
    assert others.hear(US, use(1, 1))
    assert others.hear(EU, use(1, 1))
    assert not others.hear(GatewayId("jp-1"), use(1, 1))
    assert others.hear(EU, use(2, 2))
    assert others.used(NAME, TODAY).in_day == 3
    others.keep_only([])
    assert len(others) == 0
    assert others.hear(GatewayId("jp-1"), use(1, 1))


def test_gateways_of_an_earlier_month_make_room_once_in_each_month() -> None:
    others = OthersUsage(told_max=2)
    others.hear(US, use(1, 1, day="2026-10-31"))
    others.hear(EU, use(2, 2))
    assert others.forget_before("2026-11")
    assert others.by_gateway(NAME) == {EU: use(2, 2)}
    assert len(others) == 1
    assert not others.forget_before("2026-11"), "it looks through all of them"
    assert others.forget_before("2026-12")
    assert len(others) == 0


def test_of_more_than_there_is_room_for_the_newest_are_remembered() -> None:
    others = OthersUsage(told_max=1)
    others.remember({(US, NAME): use(1, 1, day="2026-10-31"), (EU, NAME): use(2, 2)})
    assert others.by_gateway(NAME) == {EU: use(2, 2)}
