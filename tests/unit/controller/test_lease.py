from __future__ import annotations

from math import inf

import pytest

from controller.lease import Lease, LeaseOver
from tests.support.clock import StillClock

SECOND = 1_000_000_000


def test_it_ends_by_our_own_clock() -> None:
    clock = StillClock()
    lease = Lease(clock, 7, 5 * SECOND)
    assert (lease.token, lease.left_s()) == (7, 5.0)
    lease.check(4.9)
    clock.now = 5 * SECOND
    assert lease.left_s() == 0.0
    with pytest.raises(LeaseOver):
        lease.check()


def test_what_may_take_longer_than_it_lasts_is_not_begun() -> None:
    lease = Lease(StillClock(), 7, 5 * SECOND)
    with pytest.raises(LeaseOver, match=r"lasts 5\.0 s, and this may take 5\.0 s"):
        lease.check(5.0)


def test_it_lasts_longer_once_it_is_renewed_also_after_its_end() -> None:
    clock = StillClock(6 * SECOND)
    lease = Lease(clock, 7, 5 * SECOND)
    assert lease.over_s() == 1.0
    lease.renewed(8 * SECOND)
    lease.rose(9)
    assert (lease.token, lease.left_s(), lease.over_s()) == (9, 2.0, 0)


def test_one_without_an_end_lasts_until_it_is_given_back() -> None:
    lease = Lease(StillClock(SECOND), 7, None)
    lease.check(1e9)
    assert lease.left_s() == inf
    lease.end()
    with pytest.raises(LeaseOver):
        lease.check()
