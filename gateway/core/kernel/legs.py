"""Events of running legs: first tokens and ends, and what the end of one leg means for its request."""

from __future__ import annotations

from typing import assert_never

from gateway.core.kernel.events import FirstToken, LegEnded
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.requests import AttemptState, LegEnd, Phase, RequestState
from gateway.core.kernel.retries import Retries
from gateway.core.vocabulary import LegResult, LegRole, Outcome, TargetKind


class Legs:
    """Follows the legs of all requests to their ends."""

    def __init__(self, core: Kernel, retries: Retries) -> None:
        self._core = core
        self._retries = retries

    def first_token(self, event: FirstToken, now_ns: int) -> None:
        """Take in a leg's first token: learn from the time it took, and let the request's deadline replace that of the
        first token."""
        attempt = self._core.attempt_of(event.request_id, event.attempt)
        leg = None if attempt is None else attempt.legs.get(event.leg)
        if attempt is None or leg is None:
            return
        request = self._core.requests[event.request_id]
        if leg.first_token_ns is None:
            leg.first_token_ns = now_ns
        record, planner = request.record, attempt.planner
        if event.is_sent and record.first_leg is None:
            record.first_leg, record.first_token_ns = leg, now_ns
        if planner is not None and planner.first_token(request, leg):
            pass  # a leg that decodes: its time says nothing of prefill
        elif leg.target.kind is TargetKind.REPLICA:
            self._core.placer.learn_first_token(request, leg, now_ns)
        if request.first_token_ns is None:
            request.first_token_ns = now_ns
            self._core.drain_rates.first_token(request.profile.model, now_ns - leg.started_ns)
        leg.state.home.first_token(leg.state, (event.request_id, event.attempt, event.leg), now_ns)
        for feature in self._core.hooks.leg_answered:
            feature.leg_answered(request, leg, now_ns)
        if request.phase is Phase.RUNNING:
            if event.is_sent:
                request.move_to(Phase.ANSWERING)
            self._core.timers.set(request.timer, request.deadline_ns)

    def leg_ended(self, event: LegEnded, now_ns: int) -> None:
        """Take in the end of a leg: update its target, indexes and pools, then conclude what it means for the
        request. After the attempt's last leg, the request is forgotten if it has ended, else tried again, resumed or
        failed."""
        attempt = self._core.attempt_of(event.request_id, event.attempt)
        leg = None if attempt is None else attempt.legs.pop(event.leg, None)
        if attempt is None or leg is None:
            return
        request = self._core.requests[event.request_id]
        leg.ended, leg.ended_ns = event, now_ns
        result, detail = event.result, event.detail
        if result is LegResult.CANCELLED and leg.stop_detail:
            result = LegResult.REFUSED if leg.is_withdrawn else LegResult.FAILED
            detail = leg.stop_detail
        took_ns = now_ns - leg.started_ns
        key = event.request_id, event.attempt, event.leg
        has_failed_elsewhere = bool(request.failed_at) and any(target != leg.target for target in request.failed_at)
        leg.state.home.ended(leg.state, key, result, now_ns, took_ns, has_failed_elsewhere=has_failed_elsewhere)
        self._core.placer.leg_ended(request, leg, event, now_ns)
        for feature in self._core.hooks.leg_over:
            feature.leg_over(request, leg, event, now_ns)
        if attempt.planner is not None:
            attempt.planner.leg_ended(request, attempt, leg, event, now_ns)
        if request.phase is not Phase.ENDED:
            self._conclude(request, attempt, LegEnd(leg, result, detail, event))
        if attempt.legs or attempt.is_between_legs:
            return
        request.attempt = None
        if request.phase is not Phase.ENDED:
            self._retries.attempt_failed(request, attempt, now_ns)
        elif request.request_id in self._core.requests:
            self._core.forget(request)

    def _conclude(self, request: RequestState, attempt: AttemptState, end: LegEnd) -> None:
        """Decide what the end of one leg means for its request: it ends, or the leg counts as a failure of the attempt.
        The other legs are stopped, without blame; one that completes all the same ends the request as completed."""
        if end.leg.role is LegRole.PREFILL and end.result is LegResult.COMPLETED:
            return
        was_stopped = end.result is LegResult.CANCELLED and bool(attempt.failures)
        if was_stopped:
            return
        if attempt.legs:
            self._core.stop_legs(request, attempt, f"leg {end.leg.number} has ended")
        match end.result:
            case LegResult.COMPLETED:
                self._core.end(request, Outcome.COMPLETED, "")
            case LegResult.CLIENT_ERROR if not request.has_begun:
                self._core.end(request, Outcome.CLIENT_ERROR, end.detail)
            case LegResult.CANCELLED:
                self._core.end(request, Outcome.ABANDONED, end.detail)
            case LegResult.INTERNAL if end.leg.role is not LegRole.DECODE or request.phase is Phase.ANSWERING:
                self._core.end(request, Outcome.FAILED_INTERNALLY, end.detail)
            case LegResult.FAILED | LegResult.BUSY | LegResult.REFUSED | LegResult.TOO_LONG | LegResult.TAKEN_BACK if (
                why := self._why_broken(request, end)
            ):
                self._core.end(request, Outcome.FAILED_MIDSTREAM, why)
            case (
                LegResult.FAILED
                | LegResult.BUSY
                | LegResult.REFUSED
                | LegResult.TOO_LONG
                | LegResult.TAKEN_BACK
                | LegResult.INTERNAL  # a decode leg's, before anything was sent: the request is tried again
                | LegResult.CLIENT_ERROR  # another engine may accept the rest of an answer
            ):
                attempt.failures.append(end)
            case _ as never:
                assert_never(never)

    def _why_broken(self, request: RequestState, end: LegEnd) -> str:
        """Reason why the answer that this leg's end broke ends with it; empty if it will be continued, or has not
        begun."""
        if request.phase is not Phase.ANSWERING:
            return ""
        for feature in self._core.hooks.why_broken:
            why = feature.why_broken(request, end)
            if why is not None:
                return why
        return end.in_words
