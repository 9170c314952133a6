"""Invariants of resumption, as events and effects alone show them. The checker shares no step with the feature, whose
errors it is to find."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from gateway.core.features.resume.config import ResumeConfig
from gateway.core.kernel.effects import StartLeg
from gateway.core.kernel.events import AssignmentApplied, ForwardArrived, LegEnded, RequestArrived
from gateway.core.kernel.feature_checker import FeatureChecker
from gateway.core.kernel.replicas import ReplicaState
from gateway.core.kernel.requests import RequestState
from gateway.core.vocabulary import PoolName, PoolSpec, RequestId

_NO_LIMIT = 1 << 62


class _Resumed(Struct):
    """Resumptions of one request, as told by events and effects."""

    left: int = _NO_LIMIT
    """Most resumptions that the gateway that forwarded the request allows."""
    attempt: int = 0
    """Number of the last attempt."""
    count: int = 0
    there: int = 0
    """Resumptions at peers, as told when their legs ended, since it was last resumed from here."""


class ResumeChecker(FeatureChecker):
    """Checks that resumptions are counted, bounded, and made by replicas that can."""

    def __init__(self, settings: Callable[[], ResumeConfig]) -> None:
        self._settings = settings
        self._stories: dict[RequestId, _Resumed] = {}
        self._pools: dict[PoolName, PoolSpec] = {}

    def assigned(self, event: AssignmentApplied, /) -> None:
        self._pools = {pool.name: pool for pool in event.pools}

    def arrived(self, event: RequestArrived | ForwardArrived, /) -> None:
        story = self._stories[event.profile.request_id] = _Resumed()
        if isinstance(event, ForwardArrived) and event.resumes_left is not None:
            story.left = event.resumes_left.count

    def leg_ended(self, event: LegEnded, /) -> None:
        story = self._stories.get(event.request_id)
        if story is not None and event.rest is not None and event.resumes_used is not None:
            story.there = event.resumes_used.count

    def wrong_start(self, order: StartLeg, /, *, has_begun: bool) -> Sequence[str]:
        story, most = self._stories[order.request_id], self._settings().resumes_max
        told = order.resume + (0 if order.resumes_left is None else order.resumes_left.count)
        goes_on = order.resume > story.count
        counted = order.resume - story.count == 1 + story.there if goes_on else order.resume == story.count
        holds = {
            "whoever goes on goes on with something": order.attempt == story.attempt or bool(order.resume) is has_begun,
            "resumes are counted, wherever they were": counted,
            "nobody goes on for ever": order.resume <= min(most, story.left),
            "whoever forwards allows no more than it may itself": order.resumes_left is None
            or told <= min(most, story.left),
        }
        story.attempt, story.count, story.there = order.attempt, order.resume, 0
        return [invariant for invariant, is_kept in holds.items() if not is_kept]

    def may_serve(self, state: ReplicaState, request: RequestState, /) -> bool:
        """Return true unless the request is a rest and the replica resumes no answers that another engine began."""
        pool = self._pools.get(state.spec.pool)
        return not request.request_class.goes_on or (state.spec.continues and (pool is None or pool.resumes))

    def forget(self, request_id: RequestId, /) -> None:
        self._stories.pop(request_id, None)
