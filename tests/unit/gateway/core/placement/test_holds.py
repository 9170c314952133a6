"""Requests that are held for one replica."""

from __future__ import annotations

from gateway.core.kernel.requests import Hold
from gateway.core.placement.holds import Holds


def hold(uncached_bytes: int, beginning: bytes = b"") -> Hold:
    return Hold(0, uncached_bytes, beginning)


def test_nobody_is_in_the_way_where_nobody_is_held() -> None:
    holds = Holds()
    holds.pushed_bytes = 10**9
    assert holds.lets_pass


def test_the_first_is_overtaken_by_no_more_than_was_before_it_and_than_it_brings() -> None:
    holds = Holds()
    holds.pushed_bytes = 1000
    holds.add(hold(30), backlog_bytes=200)
    assert holds.overtaken_until_bytes == 1230
    holds.pushed_bytes = 1229
    assert holds.lets_pass
    holds.pushed_bytes = 1230
    assert not holds.lets_pass


def test_whoever_comes_to_wait_as_well_moves_no_bound() -> None:
    holds = Holds()
    holds.add(hold(30), backlog_bytes=200)
    holds.pushed_bytes = 100
    holds.add(hold(5000), backlog_bytes=300)
    assert (holds.count, holds.overtaken_until_bytes) == (2, 230)


def test_once_the_first_has_gone_the_next_are_overtaken_by_no_more_than_they_bring_on_average() -> None:
    holds = Holds()
    first, second, third = hold(30), hold(100), hold(300)
    for each in (first, second, third):
        holds.add(each, backlog_bytes=0)
    holds.pushed_bytes = 1000
    holds.remove(first)
    assert holds.overtaken_until_bytes == 1200
    holds.remove(second)
    assert holds.overtaken_until_bytes == 1300
    holds.remove(third)
    assert (holds.count, holds.lets_pass) == (0, True)


def test_whoever_goes_out_of_turn_gives_nobody_leave_to_overtake_the_first() -> None:
    holds = Holds()
    first, second, third = hold(30), hold(100), hold(300)
    for each in (first, second, third):
        holds.add(each, backlog_bytes=0)
    holds.pushed_bytes = 1000
    holds.remove(third)
    assert (holds.overtaken_until_bytes, holds.lets_pass) == (30, False)
    holds.remove(first)
    assert holds.overtaken_until_bytes == 1100, "what had gone before counts no more"


def test_those_who_wait_for_room_in_a_cache_have_no_turn_and_bar_nobody_s_way() -> None:
    holds = Holds()
    cold = Hold(0, 500, b"", is_cold=True)
    holds.add(cold, backlog_bytes=0)
    holds.pushed_bytes = 1000
    assert (holds.count, holds.bytes, holds.lets_pass, holds.is_first(cold)) == (1, 500, True, False)
    first, second = hold(30), hold(100)
    holds.add(first, backlog_bytes=0)
    holds.add(second, backlog_bytes=0)
    holds.remove(cold)
    assert (holds.bytes, holds.overtaken_until_bytes, holds.is_first(first)) == (130, 1030, True)
    holds.remove(first)
    assert holds.overtaken_until_bytes == 1100


def test_what_the_last_one_brought_is_not_put_to_the_account_of_the_next() -> None:
    holds = Holds()
    gone = hold(10_000)
    holds.add(gone, backlog_bytes=0)
    holds.remove(gone)
    first, second = hold(10), hold(30)
    holds.add(first, backlog_bytes=0)
    holds.add(second, backlog_bytes=0)
    holds.remove(first)
    assert holds.overtaken_until_bytes == 30


def test_those_who_wait_for_the_same_beginning_are_counted_and_forgotten() -> None:
    holds = Holds()
    same, alike, other = hold(1, b"system!!"), hold(1, b"system!!"), hold(1, b"another!")
    for each in (same, alike, other):
        holds.add(each, 0)
    assert [holds.alike(beginning) for beginning in (b"system!!", b"another!", b"unheard-")] == [2, 1, 0]
    holds.remove(same)
    assert holds.alike(b"system!!") == 1
    holds.remove(alike)
    holds.remove(other)
    assert holds._by_beginning == {}, "a map that is as large as those who wait"
