"""Breaker, ramp and retry budget."""

from __future__ import annotations

from gateway.core.kernel.attempts import Breaker, BreakerState, Ramp, RetryBudget, TargetPause
from gateway.core.kernel.config import AttemptConfig
from gateway.core.vocabulary import LegResult

CONFIG = AttemptConfig(
    breaker_failures_in_row=3,
    breaker_window=10,
    breaker_open_ns=100,
    breaker_open_max_ns=300,
    ramp_step_ns=10,
    ramp_limit=8,
)


def fail(breaker: Breaker, times: int, now_ns: int = 0) -> None:
    for _ in range(times):
        breaker.record(LegResult.FAILED, now_ns)


def test_failures_in_a_row_open_it() -> None:
    breaker = Breaker(CONFIG)
    fail(breaker, 2)
    assert breaker.allows(0)
    fail(breaker, 1)
    assert breaker.state is BreakerState.OPEN
    assert not breaker.allows(0)


def test_a_share_of_failures_in_a_full_window_opens_it_though_never_three_in_a_row() -> None:
    breaker = Breaker(CONFIG)
    for _ in range(5):
        breaker.record(LegResult.COMPLETED, 0)
        breaker.record(LegResult.FAILED, 0)
    assert breaker.state is BreakerState.OPEN


def test_busy_refused_cancelled_and_client_errors_are_no_failures() -> None:
    breaker = Breaker(CONFIG)
    for result in (LegResult.BUSY, LegResult.REFUSED, LegResult.CANCELLED, LegResult.CLIENT_ERROR, LegResult.INTERNAL):
        for _ in range(20):
            breaker.record(result, 0)
    assert breaker.state is BreakerState.CLOSED


def test_it_lets_one_trial_through_and_closes_on_success() -> None:
    breaker = Breaker(CONFIG)
    fail(breaker, 3)
    breaker.wake(99)
    assert not breaker.allows(0)
    breaker.wake(100)
    assert breaker.allows(0)
    assert not breaker.allows(1)
    assert breaker.record(LegResult.COMPLETED, 110)
    assert breaker.state is BreakerState.CLOSED


def test_each_failed_trial_doubles_the_wait_up_to_the_limit() -> None:
    breaker = Breaker(CONFIG)
    fail(breaker, 3, now_ns=0)
    waits = []
    now_ns = 0
    for _ in range(3):
        waits.append(breaker.open_until_ns - now_ns)
        now_ns = breaker.open_until_ns
        breaker.wake(now_ns)
        fail(breaker, 1, now_ns)
    assert waits == [100, 200, 300]


def test_a_trial_by_a_request_that_has_failed_elsewhere_leaves_the_wait_as_it_is() -> None:
    breaker = Breaker(CONFIG)
    fail(breaker, 3)
    for now_ns in (100, 200):
        breaker.wake(now_ns)
        breaker.record(LegResult.FAILED, now_ns, has_failed_elsewhere=True)
        assert (breaker.state, breaker.open_until_ns) == (BreakerState.OPEN, now_ns + 100)
    breaker.wake(300)
    fail(breaker, 1, 300)
    assert breaker.open_until_ns == 500, "the next fair trial doubles it"


def test_new_numbers_hold_from_the_next_end_on() -> None:
    breaker = Breaker(CONFIG)
    breaker.configure(AttemptConfig(breaker_failures_in_row=1))
    fail(breaker, 1)
    assert breaker.state is BreakerState.OPEN


def test_a_ramp_doubles_each_step_and_then_is_no_limit() -> None:
    ramp = Ramp(CONFIG)
    assert ramp.allows(10**6)
    ramp.start(0)
    limits = []
    for now_ns in (0, 10, 20, 30):
        ramp.wake(now_ns)
        limits.append(ramp.limit)
    assert limits == [1, 2, 4, None]


def test_rests_double_while_all_are_turned_away_and_never_pass_the_longest() -> None:
    config = AttemptConfig(breaker_open_ns=3200)
    rest = TargetPause(config)
    rests = []
    for now_ns in (0, 100, 200, 300, 400, 500, 600, 700):
        rest.turned_away(now_ns)
        rests.append(rest.until_ns - now_ns)
    assert rests == [0, 100, 200, 400, 800, 1600, 3200, 3200]
    rest.proved()
    rest.turned_away(800)
    assert rest.until_ns == 800


def test_a_budget_never_runs_dry_for_a_quiet_gateway_and_never_multiplies_a_busy_one() -> None:
    budget = RetryBudget(AttemptConfig(retry_budget_share=0.5, retry_budget_min=2))
    assert [budget.take() for _ in range(3)] == [True, True, False]
    budget.first_attempt()
    assert not budget.take()
    budget.first_attempt()
    assert budget.take()
