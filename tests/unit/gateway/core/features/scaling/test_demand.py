from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.features.scaling.demand import Demand, needed_replicas, needed_slots, would_have_run
from gateway.core.features.scaling.vocabulary import Sample, ScalingSettings
from gateway.core.vocabulary import Outcome

SECOND = 1_000_000_000
SETTINGS = ScalingSettings()


def looked(demand: Demand, looks: int, *, running: int, waiting: int = 0, pinned: int = 0) -> None:
    for number in range(looks):
        demand.look(Sample(running=running, waiting=waiting, pinned=pinned), (number + 1) * 15 * SECOND)


def test_what_runs_all_the_time_is_what_is_offered() -> None:
    demand = Demand(SETTINGS)
    looked(demand, 100, running=12)
    assert demand.offered == 12_000


def test_arrivals_tell_of_a_rise_before_it_runs() -> None:
    """Little's law: two a second that take ten seconds each are twenty at once."""
    demand = Demand(SETTINGS)
    looked(demand, 1, running=2)
    for number in range(100):
        for _ in range(30):
            demand.ended(10 * SECOND)
        demand.look(Sample(running=2), (number + 2) * 15 * SECOND)
    assert demand.arrivals == pytest.approx(2.0, rel=0.01)
    assert demand.offered == pytest.approx(20_000, rel=0.01)


def test_what_is_open_and_was_not_before_has_come() -> None:
    demand = Demand(SETTINGS)
    looked(demand, 1, running=0)
    demand.ended(None)
    demand.look(Sample(running=4, waiting=10), 15 * SECOND + SETTINGS.window_ns)
    assert demand.arrivals == pytest.approx(15 / 60 * 0.632, rel=0.01)
    assert demand.service_s == 0.0


def test_a_queue_counts_as_far_as_it_is_to_be_worked_off() -> None:
    demand = Demand(SETTINGS)
    for _ in range(50):
        demand.ended(6 * SECOND)
    looked(demand, 1, running=10, waiting=30)
    assert demand.offered == 10_000 + 30_000 * 6 // 60


def test_a_queue_counts_whole_while_nobody_knows_how_long_they_take_and_never_more() -> None:
    demand = Demand(SETTINGS)
    looked(demand, 1, running=0, waiting=30)
    assert demand.offered == 30_000
    demand.ended(600 * SECOND)
    assert demand.offered == 30_000


def test_one_look_is_not_a_trend() -> None:
    demand = Demand(SETTINGS)
    looked(demand, 20, running=10)
    demand.look(Sample(running=100), 20 * 15 * SECOND + SECOND)
    assert demand.offered < 12_000


def test_two_looks_at_once_divide_by_nothing() -> None:
    demand = Demand(SETTINGS)
    looked(demand, 1, running=10)
    demand.ended(SECOND)
    demand.look(Sample(running=10), 15 * SECOND)
    assert demand.offered == 10_000


def test_what_may_not_leave_is_its_share_of_what_is_offered() -> None:
    demand = Demand(SETTINGS)
    looked(demand, 50, running=8, waiting=2, pinned=5)
    assert demand.pinned == pytest.approx(demand.offered / 2, abs=2)
    assert Demand(SETTINGS).pinned == 0


@given(st.integers(0, 1_000_000), st.integers(0, 1_000_000), st.integers(1, 64))
def test_more_load_never_needs_fewer(one: int, other: int, concurrency: int) -> None:
    less, more = sorted((one, other))
    fewer, as_many = (needed_replicas(needed_slots(each, 1.0), concurrency) for each in (less, more))
    assert fewer <= as_many


def test_headroom_is_a_square_root() -> None:
    assert needed_slots(100_000, 1.0) == 110_000
    assert needed_slots(100_000, 2.0) == 120_000
    assert needed_slots(0, 2.0) == 0
    assert needed_replicas(32_000, 16) == 2
    assert needed_replicas(32_001, 16) == 3


def test_whom_the_fleet_was_too_small_for_has_come_and_whom_a_limit_kept_out_has_not() -> None:
    """A gateway that refuses requests which would be late needs more replicas, so those refusals count as demand."""
    assert would_have_run(Outcome.REJECTED_DEADLINE)
    assert would_have_run(Outcome.REJECTED_QUEUE_FULL)
    assert would_have_run(Outcome.EXPIRED_IN_QUEUE)
    assert not would_have_run(Outcome.REJECTED_TENANT_TOKEN_RATE)
    assert not would_have_run(Outcome.REJECTED_RESIDENCY_INGRESS)
