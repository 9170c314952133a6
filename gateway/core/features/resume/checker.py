"""Invariants of resumption, checked by events and effects alone, so that errors of the feature itself are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from gateway.core.features.resume.config import ResumeConfig
from gateway.core.features.resume.counts import resumes_in
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
        if isinstance(event, ForwardArrived) and (left := resumes_in(event.notes)) is not None:
            story.left = left.count

    def leg_ended(self, event: LegEnded, /) -> None:
        story = self._stories.get(event.request_id)
        used = resumes_in(event.notes)
        if story is not None and event.remainder is not None and used is not None:
            story.there = used.count

    def wrong_start(self, order: StartLeg, /, *, has_begun: bool) -> Sequence[str]:
        story, most = self._stories[order.request_id], self._settings().resumes_max
        left = resumes_in(order.notes)
        is_resumed = order.segment > story.count
        counted = order.segment - story.count == 1 + story.there if is_resumed else order.segment == story.count
        most = min(most, story.left)
        is_next = order.attempt != story.attempt
        holds = {
            "a continued answer has begun, and no other has": not is_next or bool(order.segment) is has_begun,
            "resumes are counted over all gateways": counted,
            "no answer is resumed more often than allowed": order.segment <= most,
            "a forward allows no more resumes than are left": left is None or order.segment + left.count <= most,
        }
        story.attempt, story.count, story.there = order.attempt, order.segment, 0
        return [invariant for invariant, is_kept in holds.items() if not is_kept]

    def may_serve(self, state: ReplicaState, request: RequestState, /) -> bool:
        """Return true unless the request is a rest and the replica resumes no answers that another engine began."""
        pool = self._pools.get(state.spec.pool)
        return not request.request_class.appends or (state.spec.appends and (pool is None or pool.appends))

    def forget(self, request_id: RequestId, /) -> None:
        self._stories.pop(request_id, None)
