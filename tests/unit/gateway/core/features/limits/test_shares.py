from __future__ import annotations

import re

import pytest

from gateway.core.features.limits.shares import SlowGrowth, floor_of, shares_of
from tests.support.walk import ROOT


class TestFloors:
    def test_each_has_an_equal_part_and_one_at_least(self) -> None:
        assert [floor_of(600, 6, rank, 0.2) for rank in range(6)] == [20] * 6
        assert [floor_of(6, 3, rank, 0.2) for rank in range(3)] == [1, 1, 1]

    def test_where_a_limit_does_not_go_round_the_first_have_one(self) -> None:
        assert [floor_of(2, 4, rank, 0.2) for rank in range(4)] == [1, 1, 0, 0]

    @pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
    def test_they_are_never_more_than_the_limit(self, share: float) -> None:
        for limit in range(1, 40):
            for count in range(1, 12):
                assert sum(floor_of(limit, count, rank, share) for rank in range(count)) <= limit


class TestShares:
    def test_the_example_of_the_page(self) -> None:
        floors = [floor_of(6, 3, rank, 0.2) for rank in range(3)]
        page = (ROOT / "docs/how_to/tenant_limits.md").read_text()
        rows = re.findall(r"^\| (\d), (\d), (\d) \| (\d), (\d), (\d) \|", page, flags=re.MULTILINE)
        assert len(rows) == 4
        for row in rows:
            figures = list(map(int, row))
            assert shares_of(6, figures[:3], floors) == figures[3:]

    def test_while_all_is_idle_they_are_equal(self) -> None:
        assert shares_of(6, [0, 0, 0], [1, 1, 1]) == [2, 2, 2]

    def test_whoever_asks_alone_has_it_all(self) -> None:
        assert shares_of(6, [0, 6, 0], [1, 1, 1]) == [0, 6, 0]

    def test_demands_that_fit_are_met_and_the_rest_is_room_for_whoever_comes(self) -> None:
        assert shares_of(12, [5, 1, 0], [1, 1, 1]) == [7, 3, 2]

    def test_demands_that_do_not_fit_share_in_proportion(self) -> None:
        assert shares_of(60, [60, 30, 0], [4, 4, 4]) == [40, 20, 0]

    def test_what_division_leaves_goes_to_those_who_ask(self) -> None:
        assert shares_of(7, [0, 7, 7], [1, 1, 1]) == [0, 4, 3]

    def test_who_exaggerates_takes_nobodys_floor(self) -> None:
        assert shares_of(60, [10**9, 4, 10**9], [4, 4, 4])[1] == 4
        assert shares_of(60, [10**9, 30, 30], [4, 4, 4]) == shares_of(60, [60, 30, 30], [4, 4, 4])

    def test_they_sum_to_the_limit(self) -> None:
        for demands in ([0, 0], [3, 99], [1, 0], [50, 50], [7, 7]):
            assert sum(shares_of(7, demands, [1, 1])) == 7


class TestGrowth:
    def test_it_shrinks_at_once_and_grows_when_everybody_has_heard(self) -> None:
        share = SlowGrowth(4, 0)
        told = []
        for now, target, heard in ((10, 6, 5), (20, 6, 9), (30, 6, 10), (40, 1, 30), (50, 9, 49), (60, 9, 50)):
            share.follow(target, now, heard)
            told.append(share.share)
        assert told == [4, 4, 6, 1, 1, 9]

    def test_a_dip_since_then_counts(self) -> None:
        share = SlowGrowth(2, 0)
        for now, target in ((10, 8), (60, 5), (61, 8)):
            share.follow(target, now, 0)
        share.follow(8, 70, 15)
        assert share.share == 5
        share.follow(8, 80, 61)
        assert share.share == 8

    def test_it_remembers_few_steps_however_long_nobody_is_heard(self) -> None:
        share = SlowGrowth(0, 0)
        for now in range(1, 10_000):
            share.follow(now, now, 0)
        assert len(share._seen) <= 65
        share.follow(9_999, 10_000, 9_999)
        assert share.share == 9_999
