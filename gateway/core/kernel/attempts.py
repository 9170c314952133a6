"""Health of a target as its own legs show it (circuit breaker, rest after refusals, ramp on return), and the gateway's
budget of retries."""

from __future__ import annotations

from collections import deque
from enum import StrEnum

from gateway.core.kernel.config import AttemptConfig
from gateway.core.vocabulary import LegResult

_SUCCESSES = frozenset({LegResult.COMPLETED, LegResult.CLIENT_ERROR, LegResult.TOO_LONG})
_REST_STEPS = 6
"""Doublings from the first timed rest to the longest, plus one: the second rest in a row is 2**-5 of the longest."""


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Circuit breaker: keeps legs away from a target that fails.

    It opens after failures in a row, or when a full window holds too large a share of them, so that a target which
    fails fast never looks idle. Once its open time is over it lets a single trial leg through. Each failed trial
    doubles the next open time, unless the trial's request has failed at another target before: a request that fails
    everywhere is no evidence against one target. Client errors count as successes. Busy, refused and cancelled legs and
    errors of this gateway are not counted.
    """

    __slots__ = ("_config", "_failures_in_row", "_open_for_ns", "_window", "open_until_ns", "state")

    def __init__(self, config: AttemptConfig) -> None:
        self._config = config
        self._window: deque[bool] = deque(maxlen=config.breaker_window)
        self._failures_in_row = 0
        self._open_for_ns = config.breaker_open_ns
        self.state = BreakerState.CLOSED
        self.open_until_ns = 0

    def configure(self, config: AttemptConfig) -> None:
        """Apply new settings. Counts are kept; the new numbers hold from the next end of a leg."""
        self._config = config
        self._window = deque(self._window, maxlen=config.breaker_window)

    def allows(self, in_flight: int) -> bool:
        if self.state is BreakerState.HALF_OPEN:
            return in_flight == 0
        return self.state is BreakerState.CLOSED

    def wake(self, now_ns: int) -> None:
        """Let a trial through once the open time is over."""
        if self.state is BreakerState.OPEN and now_ns >= self.open_until_ns:
            self.state = BreakerState.HALF_OPEN

    def record(self, result: LegResult, now_ns: int, *, has_failed_elsewhere: bool = False) -> bool:
        """Count a leg's end. True when a trial leg has just succeeded and closed the breaker."""
        if result in _SUCCESSES:
            return self._succeed()
        if result is LegResult.FAILED:
            self._fail(now_ns, is_fair=not has_failed_elsewhere)
        return False

    def _succeed(self) -> bool:
        self._failures_in_row = 0
        self._window.append(True)
        if self.state is not BreakerState.HALF_OPEN:
            return False
        self.state = BreakerState.CLOSED
        self._open_for_ns = self._config.breaker_open_ns
        self._window.clear()
        return True

    def _fail(self, now_ns: int, *, is_fair: bool) -> None:
        self._failures_in_row += 1
        self._window.append(False)
        if self.state is BreakerState.HALF_OPEN:
            if is_fair:
                self._open_for_ns = min(2 * self._open_for_ns, self._config.breaker_open_max_ns)
            self._open(now_ns)
        elif self.state is BreakerState.CLOSED and self._has_failed_too_often():
            self._open(now_ns)

    def _has_failed_too_often(self) -> bool:
        if self._failures_in_row >= self._config.breaker_failures_in_row:
            return True
        if len(self._window) < self._config.breaker_window:
            return False
        return self._window.count(False) >= self._config.breaker_failure_share * len(self._window)

    def _open(self, now_ns: int) -> None:
        self.state = BreakerState.OPEN
        self.open_until_ns = now_ns + self._open_for_ns
        self._failures_in_row = 0
        self._window.clear()


class TargetPause:
    """Rest of a target that refuses legs as full although it looks free, so that refusing fast never looks like being
    idle.

    The first rest lasts until the target is next observed, which is the caller's task. Each further one in a row lasts
    twice as long, up to the breaker's first open time. The caller counts refusals of legs that ran at the same time
    once.
    """

    __slots__ = ("_config", "_in_row", "until_ns")

    def __init__(self, config: AttemptConfig) -> None:
        self._config = config
        self._in_row = 0
        self.until_ns = 0

    def configure(self, config: AttemptConfig) -> None:
        self._config = config

    def turned_away(self, now_ns: int) -> None:
        shorter_by = max(0, _REST_STEPS - self._in_row)
        self.until_ns = now_ns + (self._config.breaker_open_ns >> shorter_by) * (self._in_row > 0)
        self._in_row += 1

    def proved(self) -> None:
        """The target took a leg: the next rest is a first one again."""
        self._in_row = 0


class Ramp:
    """Limit on the legs at a returning target: one leg, then twice as many after each step, until the limit ends at
    `ramp_limit`."""

    __slots__ = ("_config", "limit", "next_step_ns")

    def __init__(self, config: AttemptConfig) -> None:
        self._config = config
        self.limit: int | None = None
        self.next_step_ns = 0

    def configure(self, config: AttemptConfig) -> None:
        self._config = config

    def start(self, now_ns: int) -> None:
        self.limit = 1
        self.next_step_ns = now_ns + self._config.ramp_step_ns

    def allows(self, in_flight: int) -> bool:
        return self.limit is None or in_flight < self.limit

    def wake(self, now_ns: int) -> None:
        while self.limit is not None and now_ns >= self.next_step_ns:
            self.limit *= 2
            self.next_step_ns += self._config.ramp_step_ns
            if self.limit >= self._config.ramp_limit:
                self.limit = None


class RetryBudget:
    """Bound on retries to a share of all attempts, so that an outage is not multiplied by its own retries."""

    __slots__ = ("_credit", "_credit_max", "_share")

    def __init__(self, config: AttemptConfig) -> None:
        self._share = config.retry_budget_share
        self._credit_max = float(max(config.retry_budget_min, 1))
        self._credit = self._credit_max

    def first_attempt(self) -> None:
        """Credit a share of a retry, as each first attempt does."""
        self._credit = min(self._credit + self._share, self._credit_max)

    def take(self) -> bool:
        """Spend one retry if the budget has one; False if it has not."""
        if self._credit < 1:
            return False
        self._credit -= 1
        return True
