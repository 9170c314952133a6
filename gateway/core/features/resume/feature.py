"""Resume: the rest of an answer that broke is placed at another target, as often as the config allows.

The content of the answer is unknown here: the edge that has the transcript decides whether a rest can be requested at
all, and reports it with the end of the leg.
"""

from __future__ import annotations

from gateway.core.config import all_of
from gateway.core.features.resume.checker import ResumeChecker
from gateway.core.features.resume.config import ResumeConfig
from gateway.core.features.resume.counts import NO_RESUMES, Resumes, resumes_in, with_resumes
from gateway.core.kernel.config import KernelConfig
from gateway.core.kernel.effects import EndRequest, StartLeg
from gateway.core.kernel.events import AssignmentApplied, ForwardArrived, RequestArrived
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.model_identity import bound
from gateway.core.kernel.replicas import ReplicaState
from gateway.core.kernel.requests import AttemptState, LegEnd, LegState, RequestState
from gateway.core.vocabulary import Extra, LegResult, LegRole, Outcome, TargetKind

FIRST_STEP_DEATHS_MAX = 2
"""Consecutive engine failures on a rest before its first token, after which the rest itself may be the cause and no
further engine is tried."""

_PART = "resume"
_RECEIVERS_SHARE = 10
"""Divisor of a rest's longest wait: a receiving gateway lets a forwarded rest wait for this part, then returns it to
the origin."""
_STAND = frozenset(
    {
        Outcome.COMPLETED,
        Outcome.CLIENT_ERROR,
        Outcome.ABANDONED,
        Outcome.EXPIRED_RUNNING,
        Outcome.FAILED_MIDSTREAM,
        Outcome.FAILED_INTERNALLY,
    }
)


class Resumption:
    """Resumes of one request."""

    __slots__ = ("begun", "count", "first_step_deaths", "is_poison", "left")

    def __init__(self, left: Resumes | None) -> None:
        self.left = left
        """Resumes that the forwarding gateway still allows; None: it sets no limit, or the request is not a forward."""
        self.count = 0
        """Times that its answer broke and was to be resumed, here and at peers; above 0, the client has part of an
        answer."""
        self.begun = 0
        """Resumes that a target was asked to make."""
        self.first_step_deaths = 0 if left is None else left.first_step_deaths
        """Engines that failed the rest of the answer before their first token since it last broke, here or before
        forwarding."""
        self.is_poison = False
        """The request itself may be what breaks engines: nothing resumes it."""


_UNBROKEN = Resumption(None)
"""Stands for the resumes of a request that has none; never written to."""


class Resume(Feature):
    """Resumes broken answers. The feature is on whatever the config says: a peer may forward the rest of an answer at
    any moment."""

    def __init__(self, core: Kernel) -> None:
        self._core = core
        self._config = ResumeConfig()

    def is_on(self) -> bool:
        return True

    def configure(self, config: KernelConfig, now_ns: int, /) -> None:  # noqa: ARG002
        self._config = all_of(config).resume

    def assign(
        self,
        event: AssignmentApplied,
        joined: list[ReplicaState],  # noqa: ARG002
        left: list[ReplicaState],  # noqa: ARG002
        now_ns: int,  # noqa: ARG002
        /,
    ) -> None:
        """Find the replicas that resume answers that another one began, and hand over their own."""
        replicas = self._core.replicas
        closed = {pool.name for pool in event.pools if not pool.appends}
        replicas.appending = sum(
            1 << state.slot for state in replicas if state.spec.appends and state.spec.pool not in closed
        )

    def admitted(self, request: RequestState, event: RequestArrived | ForwardArrived, now_ns: int, /) -> None:
        if isinstance(event, ForwardArrived) and (left := resumes_in(event.notes)) is not None:
            request.keep(_PART, Resumption(left))
        if request.profile.appends:
            request.queue_deadline_ns = now_ns + self._core.wait_max_ns(request)

    def wait_max_ns(self, request: RequestState, /) -> int | None:
        """Longest time that a rest may wait. A forwarded rest waits only briefly at the receiver: the origin can choose
        among all other regions, and its client sees no progress meanwhile."""
        if not _is_rest(request):
            return None
        whole_ns = self._config.wait_max_ns
        return whole_ns if request.origin_gateway_id is None else whole_ns // _RECEIVERS_SHARE

    def checker(self) -> ResumeChecker:
        return ResumeChecker(self.settings)

    def settings(self) -> ResumeConfig:
        """Settings in force."""
        return self._config

    # Orders

    def on_order(self, request: RequestState, leg: LegState, order: StartLeg, /) -> None:
        """Tell the leg how often its answer broke, and whether it may be resumed if it breaks there."""
        config, part = self._config, _UNBROKEN
        if request.parts is not None:
            part = _part_of(request)
            if part.count:
                order.segment = leg.segment = part.begun = part.count
        profile = request.profile
        if not profile.stream or profile.follows or not config.enabled:
            return
        if leg.target.kind is TargetKind.REPLICA and not self._core.replicas.appending >> leg.state.slot & 1:
            return
        order.keeps_answer = True
        if config.token_ids and not part.count and leg.role is LegRole.WHOLE:
            order.extras = (Extra.TOKEN_IDS, *order.extras)
        if leg.target.kind is TargetKind.PEER:
            order.notes = with_resumes(order.notes, Resumes(self._left(part), part.first_step_deaths))

    def _left(self, part: Resumption) -> int:
        """Resumes still allowed, by the stricter of this gateway's limit and that of the gateway that forwarded the
        request."""
        most = self._config.resumes_max
        if part.left is not None:
            most = min(most, part.left.count)
        return max(0, most - part.count)

    # Broken answers

    def why_broken(self, request: RequestState, end: LegEnd, /) -> str | None:
        why = self._why_not_resumed(request, end)
        if not why:
            return ""
        if end.event.is_final:
            _part_to_change(request).is_poison = True
        return end.in_words if end.event.remainder is None else f"{end.in_words}; {why}"

    def may_append(self, request: RequestState, /) -> bool:
        part = _part_of(request)
        return self._config.enabled and self._left(part) > 0 and not part.is_poison

    def _why_not_resumed(self, request: RequestState, end: LegEnd) -> str:
        """Reason why the answer that this leg's end broke is not resumed; empty if it may be."""
        event, part = end.event, _part_of(request)
        if not self._config.enabled or event.remainder is None:
            return "it cannot go on elsewhere"
        if event.is_final:
            return "the other gateway says that no gateway should resume it"
        used = (resumes_in(event.notes) or NO_RESUMES).count
        if used >= self._left(part):
            return f"it went on elsewhere {part.count + used} times already"
        return ""

    def go_on(self, request: RequestState, attempt: AttemptState, now_ns: int, /) -> bool:
        """Queue the rest of a broken answer as a request under the old arrival number. Where no failed leg left a rest,
        nothing can: a leg that was being stopped may have begun the answer."""
        for end in attempt.failures:
            if end.event.remainder is not None:
                self._queue_rest(request, end, now_ns)
                return True
        return False

    def _queue_rest(self, request: RequestState, broken: LegEnd, now_ns: int) -> None:
        """Queue the rest that a leg left, if the retry budget allows it. The first rest takes nothing of it, nor does
        one that comes from a silent target or one that is gone: the load moves with it. When regions die one after the
        other, all of their answers' rests move twice."""
        rest = broken.event.remainder
        assert rest is not None, "its leg left one"
        part = _part_to_change(request)
        there = resumes_in(broken.event.notes) or NO_RESUMES
        is_first = not (part.count or there.count or request.profile.appends)
        part.begun = part.count + there.count
        part.count = part.begun + 1
        part.first_step_deaths = there.first_step_deaths
        request.profile = bound(self._core, request, rest, broken)
        request.has_begun = True
        request.failures = request.busy_answers = 0
        moves_load = is_first or broken.result is LegResult.TAKEN_BACK or not broken.leg.state.healthy
        if not (moves_load or self._core.retry_budget.take()):
            self._core.end(request, Outcome.FAILED_MIDSTREAM, f"{request.last_failure}; retry budget spent")
            return
        request.queue_deadline_ns = now_ns + self._core.wait_max_ns(request)
        self._core.wait_again(request, now_ns)

    def failed(self, request: RequestState, end: LegEnd, /) -> None:
        """Count the engines that failed the rest of a broken answer before their first token. Two in a row, or a peer's
        word that it must not be resumed, make the request poison: it ends rather than being carried to the next
        engine."""
        if not _is_rest(request):
            return
        part = _part_to_change(request)
        part.first_step_deaths = _deaths_after(part, end)
        if not end.event.is_final and part.first_step_deaths < FIRST_STEP_DEATHS_MAX:
            return
        part.is_poison = True
        deaths = f"{part.first_step_deaths} in a row failed it before their first token"
        outcome = Outcome.FAILED_MIDSTREAM if part.count else Outcome.FAILED_BEFORE_FIRST_BYTE
        self._core.end(request, outcome, f"{request.last_failure}; {deaths}: no gateway resumes it")

    def ends(self, request: RequestState, end: EndRequest, now_ns: int, /) -> None:  # noqa: ARG002
        """Tell the end how often the answer was resumed; the failure of a forward tells it even where it never was, as
        the origin would count an end without it as one more engine that failed. Any failure of a request whose client
        has part of its answer is one in the middle of a stream."""
        has_failed_there = request.origin_gateway_id is not None and end.outcome is not Outcome.COMPLETED
        if request.parts is None and not has_failed_there:
            return
        part = _part_of(request)
        if part.count:
            end.outcome = broken_outcome(end.outcome)
        end.is_final = part.is_poison
        if has_failed_there or part.begun or part.first_step_deaths:
            end.notes = with_resumes(end.notes, Resumes(part.begun, part.first_step_deaths))


def broken_outcome(outcome: Outcome) -> Outcome:
    """Outcome of a request whose client has part of its answer: any failure to resume becomes FAILED_MIDSTREAM."""
    return outcome if outcome in _STAND else Outcome.FAILED_MIDSTREAM


def _is_rest(request: RequestState) -> bool:
    """Return whether the request is the rest of an answer that broke here or before it was forwarded to this
    gateway."""
    return request.profile.appends or _part_of(request).count > 0


def _deaths_after(part: Resumption, end: LegEnd) -> int:
    """Consecutive engines that failed a rest before its first token, this end included. An engine that was never
    reached does not count. A peer's own count includes those reported to it; a peer that reports none counts as one."""
    there = resumes_in(end.event.notes)
    if there is not None:
        return max(part.first_step_deaths, there.first_step_deaths)
    return part.first_step_deaths + end.event.has_reached


def _part_of(request: RequestState) -> Resumption:
    """Resumes of a request, to be read."""
    part = None if request.parts is None else request.parts.get(_PART)
    return part if isinstance(part, Resumption) else _UNBROKEN


def _part_to_change(request: RequestState) -> Resumption:
    """Resumes of a request, to be written to."""
    part = _part_of(request)
    if part is _UNBROKEN:
        part = Resumption(None)
        request.keep(_PART, part)
    return part
