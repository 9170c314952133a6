"""Decide whether a broken answer is resumed at another target, and explain why if not. Pure.

The content of the answer is unknown here: the edge that has the transcript decides whether a rest can be requested at
all, and reports it with the end of the leg.
"""

from __future__ import annotations

from gateway.core.config import CoreConfig, ResumeConfig
from gateway.core.requests import LegEnd, RequestState
from gateway.core.vocabulary import Outcome

FIRST_STEP_DEATHS_MAX = 2
"""Consecutive engine failures on a rest before its first token, after which the rest itself may be the cause and no
further engine is tried."""

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


def why_not_resumed(config: ResumeConfig, request: RequestState, end: LegEnd) -> str:
    """Reason why the answer that this leg's end broke is not resumed; empty if it may be."""
    if not config.enabled or end.rest is None:
        return "it cannot go on elsewhere"
    if end.is_final:
        return "the gateway there says that nobody should go on with it"
    used = 0 if end.resumes_used is None else end.resumes_used.count
    if used >= resumes_left(config, request):
        return f"it went on elsewhere {request.resumes + used} times already"
    return ""


def resumes_left(config: ResumeConfig, request: RequestState) -> int:
    """Resumes still allowed, by the stricter of this gateway's limit and that of the gateway that forwarded the
    request."""
    told = request.resumes_left
    most = config.resumes_max if told is None else min(config.resumes_max, told.count)
    return max(0, most - request.resumes)


def wait_max_ns_of(config: CoreConfig, request: RequestState) -> int:
    """Longest time that the request may wait to be tried again, by its service class. A forwarded rest waits only
    briefly at the receiver: the origin can choose among all other regions, and its client sees no progress
    meanwhile."""
    if not is_rest(request):
        return config.classes.wait_max_ns(request.request_class.service_class, config.queue.wait_max_ns)
    whole_ns = config.resume.wait_max_ns
    return whole_ns if request.origin_gateway_id is None else whole_ns // _RECEIVERS_SHARE


def is_rest(request: RequestState) -> bool:
    """Return whether the request is the rest of an answer that broke here or before it was forwarded to this
    gateway."""
    return request.resumes > 0 or request.profile.goes_on


def deaths_after(request: RequestState, end: LegEnd) -> int:
    """Consecutive engines that failed a rest before its first token, this end included. An engine that was never
    reached does not count. A peer's own count includes those reported to it; a peer that reports none counts as one."""
    there = end.resumes_used
    if there is not None:
        return max(request.first_step_deaths, there.first_step_deaths)
    return request.first_step_deaths + end.has_reached


def broken_outcome(outcome: Outcome) -> Outcome:
    """Outcome of a request whose client has part of its answer: any failure to resume becomes FAILED_MIDSTREAM."""
    return outcome if outcome in _STAND else Outcome.FAILED_MIDSTREAM
