from __future__ import annotations

from gateway.core.features.scaling.planner import RegionPlan
from gateway.core.features.scaling.steady import Steady
from gateway.core.features.scaling.vocabulary import PoolSettings, ScalingReason, ScalingSettings
from gateway.core.vocabulary import ModelName

SECOND = 1_000_000_000
SETTINGS = ScalingSettings(up_after_ns=30 * SECOND, down_after_ns=300 * SECOND, down_every_ns=60 * SECOND)
POOL = PoolSettings(ModelName("m"), 8, 10)


def verdict(replicas: int, *, may_lose: bool = False, borrowed: int = 0, lent: int = 0, missing: int = 0) -> RegionPlan:
    return RegionPlan(replicas, may_lose, False, borrowed, lent, missing)


class Region:
    """Region that is looked at every fifteen seconds."""

    def __init__(self, wanted: int) -> None:
        self.now_ns = 0
        self.steady = Steady(SETTINGS, wanted, 0)

    def look(self, told: RegionPlan, *, somebody: bool | None = None, times: int = 1) -> ScalingReason:
        reason = ScalingReason.STEADY
        for _ in range(times):
            self.now_ns += 15 * SECOND
            reason = self.steady.take(told, told.may_lose if somebody is None else somebody, POOL, self.now_ns)
        return reason


def test_more_come_all_at_once_after_having_been_missing_for_long_enough() -> None:
    region = Region(2)
    assert region.look(verdict(5)) is ScalingReason.WAITS
    assert region.look(verdict(5)) is ScalingReason.WAITS
    assert region.look(verdict(5)) is ScalingReason.LOAD
    assert region.steady.wanted == 5


def test_a_moment_without_need_begins_the_waiting_anew() -> None:
    region = Region(2)
    region.look(verdict(5), times=2)
    assert region.look(verdict(2)) is ScalingReason.STEADY
    assert region.look(verdict(5), times=2) is ScalingReason.WAITS
    assert region.steady.wanted == 2


def test_they_go_one_at_a_time_after_a_long_calm_and_in_no_hurry() -> None:
    region = Region(4)
    idle = verdict(4, may_lose=True)
    assert region.look(idle, times=20) is ScalingReason.COOLS
    assert region.look(idle) is ScalingReason.IDLE
    assert region.steady.wanted == 3
    idle = verdict(3, may_lose=True)
    assert region.look(idle, times=3) is ScalingReason.COOLS
    assert region.look(idle) is ScalingReason.IDLE
    assert region.steady.wanted == 2


def test_the_calm_is_the_meshs_and_the_turn_is_one_regions() -> None:
    """The region whose turn it is may change from look to look; the calm goes on."""
    region = Region(4)
    assert region.look(verdict(4), somebody=True, times=20) is ScalingReason.STEADY
    assert region.look(verdict(4, may_lose=True)) is ScalingReason.IDLE


def test_who_goes_next_waits_for_what_came_of_the_last_one_elsewhere() -> None:
    region = Region(4)
    idle = verdict(4, may_lose=True)
    region.look(idle, times=20)
    region.steady.others_moved(region.now_ns)
    assert region.look(idle, times=3) is ScalingReason.COOLS
    assert region.look(idle) is ScalingReason.IDLE


def test_a_look_at_which_nobody_could_go_ends_the_calm() -> None:
    region = Region(4)
    region.look(verdict(4, may_lose=True), times=20)
    region.look(verdict(4))
    assert region.look(verdict(4, may_lose=True), times=20) is ScalingReason.COOLS
    assert region.steady.wanted == 4


def test_bounds_are_kept_at_once() -> None:
    region = Region(4)
    assert region.steady.keep_within(6, 8, 0)
    assert region.steady.wanted == 6
    assert region.steady.keep_within(1, 3, 0)
    assert region.steady.wanted == 3
    assert not region.steady.keep_within(1, 3, 0)


def test_engines_that_are_heard_late_after_a_start_are_not_sent_away() -> None:
    region = Region(1)
    region.steady.find(6, 60 * SECOND)
    assert region.steady.wanted == 6
    region.steady.find(9, 301 * SECOND)
    assert region.steady.wanted == 6


def test_it_says_why_it_stays() -> None:
    region = Region(2)
    assert region.look(verdict(2, borrowed=1)) is ScalingReason.BORROWS
    assert region.look(verdict(2, lent=1)) is ScalingReason.LENDS
    region = Region(10)
    assert region.look(verdict(10, missing=5)) is ScalingReason.AT_MOST
