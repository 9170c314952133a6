"""Whether an answer that broke goes on somewhere else, and what is said of one that does not. Pure.

It knows nothing of what was answered: whether a rest could be asked for at all is for whoever has the transcript to
say, and comes with the end of the leg.
"""

from __future__ import annotations

from gateway.core.config import CoreConfig, ResumeConfig
from gateway.core.requests import LegEnd, RequestState
from gateway.core.vocabulary import Outcome

FIRST_STEP_DEATHS_MAX = 2
"""So many engines in a row that fail a rest before its first token may have died of it: the next one is spared."""

_RECEIVERS_SHARE = 10
"""Of what a rest may wait in all, a receiver waits one part in so many before the origin has it."""
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
    """Why nobody goes on with an answer that this end of a leg broke; empty where somebody may."""
    if not config.enabled or end.rest is None:
        return "it cannot go on elsewhere"
    if end.is_final:
        return "the gateway there says that nobody should go on with it"
    used = 0 if end.resumes_used is None else end.resumes_used.count
    if used >= resumes_left(config, request):
        return f"it went on elsewhere {request.resumes + used} times already"
    return ""


def resumes_left(config: ResumeConfig, request: RequestState) -> int:
    """How often it may still go on, by the stricter of ours and whoever forwarded it to us."""
    told = request.resumes_left
    most = config.resumes_max if told is None else min(config.resumes_max, told.count)
    return max(0, most - request.resumes)


def wait_max_ns_of(config: CoreConfig, request: RequestState) -> int:
    """What it may wait for somebody who tries it again, by what it is served as. A rest waits here for a moment only if
    another gateway forwarded it: that one has all the other regions, and a client that sees nothing come."""
    if not is_rest(request):
        return config.classes.wait_max_ns(request.request_class.service_class, config.queue.wait_max_ns)
    whole_ns = config.resume.wait_max_ns
    return whole_ns if request.origin_gateway_id is None else whole_ns // _RECEIVERS_SHARE


def is_rest(request: RequestState) -> bool:
    """Is it what is left of an answer: one that broke here, or before it was forwarded to us?"""
    return request.resumes > 0 or request.profile.goes_on


def deaths_after(request: RequestState, end: LegEnd) -> int:
    """How many in a row have failed a rest before they said anything of it. An engine that took no connection has not;
    a peer counts those that it was told of, too, and one that does not count is one of them."""
    there = end.resumes_used
    if there is not None:
        return max(request.first_step_deaths, there.first_step_deaths)
    return request.first_step_deaths + end.has_reached


def broken_outcome(outcome: Outcome) -> Outcome:
    """How a request ends whose client has a part of its answer: whatever kept it from going on, it broke."""
    return outcome if outcome in _STAND else Outcome.FAILED_MIDSTREAM
