from __future__ import annotations

from controller.dns.route53.api import RequestPace
from tests.support.clock import StillClock

SECOND = 1_000_000_000


def test_calls_come_at_once_after_a_rest_and_then_one_after_another() -> None:
    clock = StillClock()
    pace = RequestPace(4, clock)
    assert [pace.wait_s() for _ in range(7)] == [0, 0, 0, 0, 0.25, 0.5, 0.75]
    clock.now = 10 * SECOND
    assert [pace.wait_s() for _ in range(5)] == [0, 0, 0, 0, 0.25]


def test_never_more_than_so_many_in_any_second() -> None:
    clock = StillClock()
    pace = RequestPace(4, clock)
    made = []
    for _ in range(40):
        made.append(clock.now + round(pace.wait_s() * SECOND))
        clock.now += SECOND // 7
    assert all(len([each for each in made if start <= each < start + SECOND]) <= 4 + 4 for start in made)
