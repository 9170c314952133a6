"""Retries: what follows an attempt that is over without a complete answer."""

from __future__ import annotations

from dataclasses import replace

from gateway.core.kernel.config import IdentityRule
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.model_identity import bound
from gateway.core.kernel.request_class import RequestClass
from gateway.core.kernel.requests import AttemptState, LegEnd, LegState, Phase, RequestState
from gateway.core.vocabulary import LegResult, Outcome, RefusalReason, TargetKind

_RESIDENCY_REFUSALS = frozenset({RefusalReason.RESIDENCY_NOT_ACCEPTED, RefusalReason.RESIDENCY_STAMP})

_LEFT_BEHIND = frozenset({LegResult.FAILED, LegResult.TAKEN_BACK})
"""Results of targets that may have begun what another one does instead."""


class Retries:
    """Learns from failed attempts, and queues their requests again as often as the config allows."""

    def __init__(self, core: Kernel) -> None:
        self._core = core

    def attempt_failed(self, request: RequestState, attempt: AttemptState, now_ns: int) -> None:
        """Decide what follows an attempt whose legs are all over without a complete answer: learn from the failures,
        then try again by the worst of them, resume a broken answer, or end the request."""
        if not attempt.failures and attempt.planner is not None:
            request.last_failure = attempt.planner.why_it_stopped(attempt)
            self.try_again_after_failure(request, now_ns)
            return
        if not attempt.failures:
            self._core.end(
                request, Outcome.FAILED_BEFORE_FIRST_BYTE, "every leg ended, and none of them with an answer"
            )
            return
        for end in attempt.failures:
            self._learn_from_failure(request, end)
        worst = next((end for end in attempt.failures if end.result is LegResult.FAILED), attempt.failures[0])
        request.last_failure = worst.in_words
        if request.phase is Phase.ANSWERING:
            self._go_on(request, attempt, now_ns)
        elif worst.result in (LegResult.FAILED, LegResult.CLIENT_ERROR):
            self._bind(request, attempt)
            self._tell_failed(request, worst)
            if request.phase is not Phase.ENDED:
                self.try_again_after_failure(request, now_ns, target_is_gone=not worst.leg.state.healthy)
        elif worst.result is LegResult.TAKEN_BACK:
            self._bind(request, attempt)
            request.queue_deadline_ns = now_ns + self._core.wait_max_ns(request)
            self._core.wait_again(request, now_ns)
        elif worst.result is LegResult.BUSY:
            self._try_again_after_busy(request, now_ns)
        elif worst.result is LegResult.INTERNAL:
            self.try_again_after_failure(request, now_ns, Outcome.FAILED_INTERNALLY)
        elif worst.result is LegResult.TOO_LONG:
            self._try_again_longer(request, now_ns)
        else:
            self._try_again_after_refusal(request, worst, now_ns)

    def _bind(self, request: RequestState, attempt: AttemptState) -> None:
        """Bind a request that fails over to the model identity of the target that failed it, where the rule asks for
        that. A target that was never reached binds nothing, and a request that refers to a stored response has one
        target anyway."""
        rule = self._core.config.attempt.identity_rule_of(request.profile.model)
        if rule is not IdentityRule.SAME or request.request_class.pinned is not None:
            return
        for end in attempt.failures:
            if end.result in _LEFT_BEHIND and end.event.has_reached:
                request.profile = bound(self._core, request, request.profile, end)
                return

    def _go_on(self, request: RequestState, attempt: AttemptState, now_ns: int) -> None:
        """Let a feature continue a broken answer; the request ends if none does."""
        for feature in self._core.hooks.go_on:
            if feature.go_on(request, attempt, now_ns):
                return
        self._core.end(request, Outcome.FAILED_MIDSTREAM, request.last_failure)

    def _tell_failed(self, request: RequestState, end: LegEnd) -> None:
        """Tell features of a failed attempt. A client error only keeps the request away from that target: another
        engine may accept the rest of an answer."""
        if end.result is LegResult.CLIENT_ERROR:
            self._avoid(request, end.leg)
            return
        for feature in self._core.hooks.failed:
            if request.phase is not Phase.ENDED:
                feature.failed(request, end)

    def _learn_from_failure(self, request: RequestState, end: LegEnd) -> None:
        """Keep the request away from a target that failed it or refused it for good. A refused forward is taken out of
        the prefix index of peers."""
        if end.result is LegResult.REFUSED and end.event.refusal is not RefusalReason.UNKNOWN_RESPONSE:
            self._core.placer.retract(request, end.leg.state, end.leg.kept_blocks)
        if end.event.refusal in _RESIDENCY_REFUSALS and end.leg.target not in request.barred_at:
            request.barred_at += (end.leg.target,)
        if end.result is LegResult.FAILED or end.event.refusal in _RESIDENCY_REFUSALS:
            self._avoid(request, end.leg)
        if end.event.refusal is RefusalReason.TOO_LONG or (
            end.result is LegResult.TOO_LONG and end.leg.target.kind is TargetKind.PEER
        ):
            request.barred_at += (end.leg.target,)
            self._avoid(request, end.leg)
        request.is_too_long |= end.result is LegResult.TOO_LONG or end.event.refusal is RefusalReason.TOO_LONG

    def try_again_after_failure(
        self,
        request: RequestState,
        now_ns: int,
        outcome: Outcome = Outcome.FAILED_BEFORE_FIRST_BYTE,
        *,
        target_is_gone: bool = False,
    ) -> None:
        """Queue the request again if its attempts and the retry budget allow it. `outcome`: how it ends otherwise.
        `target_is_gone`: its target no longer answers, so that the load moves and the budget is not asked."""
        request.failures += 1
        if request.failures >= self._core.config.attempt.attempts_max:
            self._core.end(request, outcome, request.last_failure)
        elif not (target_is_gone or self._core.retry_budget.take()):
            self._core.end(request, outcome, f"{request.last_failure}; retry budget spent")
        else:
            request.queue_deadline_ns = now_ns + self._core.wait_max_ns(request)
            self._core.wait_again(request, now_ns)

    def _try_again_after_busy(self, request: RequestState, now_ns: int) -> None:
        """Queue the request again after its target was full. The target is alive and rests for a while.

        A request that finds engines full too often is rejected as for a full queue rather than failed: it may well be
        served a little later.
        """
        request.busy_answers += 1
        if request.busy_answers > self._core.config.attempt.refusals_max:
            self._core.end(
                request, Outcome.REJECTED_QUEUE_FULL, f"engines were full {request.busy_answers} times in a row"
            )
        else:
            self._core.wait_again(request, now_ns)

    def lapse(self, request: RequestState, attempt: AttemptState, why: str, now_ns: int) -> None:
        assert attempt.planner is not None, "its legs are planned"
        attempt.planner.withdraw(request, attempt)
        request.attempt = None
        request.last_failure = why
        request.queue_deadline_ns = now_ns + self._core.wait_max_ns(request)
        self._try_again_after_busy(request, now_ns)

    def _try_again_longer(self, request: RequestState, now_ns: int) -> None:
        """Queue the request again, once, after an engine refused it for its length: its size may be larger by then,
        and a longer pool be chosen."""
        if request.was_too_long_before:
            self._core.end(request, Outcome.REJECTED_TOO_LONG, request.last_failure)
            return
        request.was_too_long_before = True
        self._core.wait_again(request, now_ns)

    def _try_again_after_refusal(self, request: RequestState, end: LegEnd, now_ns: int) -> None:
        """Queue the request again at its old place after a peer refused it; end it if the peer does not know the stored
        response."""
        if end.event.refusal is RefusalReason.UNKNOWN_RESPONSE:
            self._core.end(request, Outcome.REJECTED_UNKNOWN_RESPONSE, request.last_failure)
            return
        request.refusals += 1
        self._core.wait_again(request, now_ns)

    def _avoid(self, request: RequestState, leg: LegState) -> None:
        """Note that a target failed the request, which leaves it out of the request's class."""
        if leg.target not in request.failed_at:
            request.failed_at += (leg.target,)
        request.request_class = class_with_failures(self._core, request)


def class_with_failures(core: Kernel, request: RequestState) -> RequestClass:
    """Class of the request with its failed targets in the slots that are theirs at present."""
    return replace(
        request.request_class,
        failed_replicas=core.replicas.mask_of(request.failed_at),
        failed_peers=core.peers.mask_of(request.failed_at),
    )
