"""Whether an answer that broke goes on somewhere else, and what is said of one that does not. Pure.

It knows nothing of what was answered: whether a rest could be asked for at all is for whoever has the transcript to
say, and comes with the end of the leg.
"""

from __future__ import annotations

from gateway.core.config import ResumeConfig
from gateway.core.requests import LegEnd, RequestState
from gateway.core.vocabulary import Outcome

FIRST_STEP_DEATHS_MAX = 2
"""So many engines in a row that fail a rest before its first token may have died of it: the next one is spared."""

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
    if request.resumes >= config.resumes_max:
        return f"it went on elsewhere {request.resumes} times already"
    return ""


def is_first_step_death(request: RequestState, end: LegEnd) -> bool:
    """Has an engine failed the rest of an answer before it said anything? One that took no connection has not."""
    return request.resumes > 0 and end.has_reached


def broken_outcome(outcome: Outcome) -> Outcome:
    """How a request ends whose client has a part of its answer: whatever kept it from going on, it broke."""
    return outcome if outcome in _STAND else Outcome.FAILED_MIDSTREAM
