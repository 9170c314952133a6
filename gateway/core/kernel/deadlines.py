"""Deadlines of requests: in the queue, of the first token, and of the whole answer."""

from __future__ import annotations

from gateway.core.kernel.feasibility import waits_for
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.requests import AttemptState, Phase, RequestState
from gateway.core.kernel.retries import Retries
from gateway.core.vocabulary import Outcome


class Deadlines:
    """Acts on the timers of requests."""

    def __init__(self, core: Kernel, retries: Retries) -> None:
        self._core = core
        self._retries = retries

    def passed(self, request: RequestState, now_ns: int) -> None:
        """Act on a request's timer: let features look at it or end it while it waits, end it at its deadline, and give
        up an attempt that gave no first token in time."""
        attempt = request.attempt
        if attempt is None and now_ns < request.next_deadline_ns:
            request.look_ns = None
            for feature in self._core.hooks.waited:
                feature.waited(request, now_ns)
            self._core.timers.set(request.timer, request.wakes_ns)
        elif attempt is None:
            waited_ms = (now_ns - request.arrived_ns) // 1_000_000
            because = f"; before that, {request.last_failure}" if request.last_failure else ""
            told = f"no replica was free for {waited_ms} ms: it waited for {waits_for(self._core, request)}{because}"
            self._core.end(request, Outcome.EXPIRED_IN_QUEUE, told)
        elif now_ns >= request.deadline_ns:
            self._core.stop_legs(request, attempt, "deadline")
            where = ", ".join(f"running at {leg.target}" for leg in attempt.legs.values())
            lacks = "" if attempt.planner is None else attempt.planner.what_it_lacks()
            told = f"deadline passed while {where or lacks}"
            self._core.end(request, Outcome.EXPIRED_RUNNING, told)
        elif attempt.is_between_legs and attempt.planner is not None:
            attempt.planner.withdraw(request, attempt)
            request.attempt = None
            request.last_failure = f"{attempt.planner.what_it_lacks()} before the first token's deadline"
            self._retries.try_again_after_failure(request, now_ns)
        elif request.phase is Phase.RUNNING:
            self._order_to_stop(request, attempt, "no first token before the deadline")
            self._core.timers.set(request.timer, request.deadline_ns)

    def _order_to_stop(self, request: RequestState, attempt: AttemptState, why: str) -> None:
        """Order each leg that is not stopping yet to stop, and count it as its target's failure."""
        for leg in attempt.legs.values():
            if not leg.is_stopping:
                leg.stop_detail = why
                self._core.stop_leg(request, attempt, leg, why)
