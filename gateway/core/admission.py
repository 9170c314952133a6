"""Who waits: one first-come-first-served queue per request class, where class heads compete by arrival number.

A class holds requests that could go to exactly the same targets, so one that may go nowhere never blocks one that may.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from gateway.core.peers import PeerState
from gateway.core.replicas import ReplicaState
from gateway.core.timers import Timer, TimerKind
from gateway.core.vocabulary import (
    GatewayId,
    Hops,
    ModelName,
    PlaceRule,
    RequestId,
    RequestProfile,
    ResidencyStamp,
    Target,
    TenantName,
)

_SLACK = 64
_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class RequestClass:
    """Everything that decides which targets a request may go to."""

    model: ModelName
    rule: PlaceRule
    may_stay_in_region: bool
    """May go to another gateway of this region."""
    may_cross_regions: bool
    failed_replicas: int = 0
    """Slots where an attempt of this very request failed; it goes elsewhere if there is an elsewhere."""
    failed_peers: int = 0
    pinned: Target | None = None
    """The one target that has the stored response it refers to."""
    is_control: bool = False
    """Needs a target that answers, not one that is free."""
    _hash: int = field(init=False, compare=False, repr=False, default=0)

    def __hash__(self) -> int:
        """It is looked up several times for each request, and the same all its life."""
        if not self._hash:
            told = (self.model, self.rule, self.may_stay_in_region, self.may_cross_regions)
            own = (self.failed_replicas, self.failed_peers, self.pinned, self.is_control)
            object.__setattr__(self, "_hash", hash((told, own)))
        return self._hash


class Phase(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    """Over for the client; an attempt may still have to report its end."""


class AttemptState:
    """One numbered try of one request at one target, alive until its LegEnded."""

    __slots__ = ("first_token", "is_withdrawn", "kept_blocks", "number", "started_ns", "state", "stop_detail")

    def __init__(self, number: int, state: ReplicaState | PeerState, started_ns: int, kept_blocks: int) -> None:
        self.number = number
        self.state = state
        self.started_ns = started_ns
        self.kept_blocks = kept_blocks
        """How much of the prefix the index had for this target before: a refusal takes back only what was added."""
        self.first_token = False
        self.stop_detail = ""
        """Why we ordered it to stop; then its CANCELLED is a failure of the target, not the client's leaving."""
        self.is_withdrawn = False
        """We took the forward back, through no fault of the peer."""

    @property
    def target(self) -> Target:
        return self.state.target


class RequestState:
    """A request from arrival to the end of its last attempt."""

    __slots__ = (
        "arrival_number",
        "arrived_ns",
        "attempt",
        "attempts",
        "busy_answers",
        "deadline_ns",
        "failures",
        "hops",
        "last_failure",
        "origin_gateway_id",
        "phase",
        "profile",
        "queue_deadline_ns",
        "refusals",
        "request_class",
        "stamp",
        "timer",
        "was_shadowed",
    )

    def __init__(
        self,
        profile: RequestProfile,
        request_class: RequestClass,
        *,
        arrival_number: int,
        arrived_ns: int,
        deadline_ns: int,
        queue_deadline_ns: int,
        stamp: ResidencyStamp,
        hops: Hops,
        origin_gateway_id: GatewayId | None,
    ) -> None:
        self.profile = profile
        self.request_class = request_class
        self.arrival_number = arrival_number
        self.arrived_ns = arrived_ns
        self.deadline_ns = deadline_ns
        self.queue_deadline_ns = queue_deadline_ns
        self.stamp = stamp
        self.hops = hops
        self.origin_gateway_id = origin_gateway_id
        """The gateway that forwarded it to us; None for a client's own request."""
        self.timer = Timer(TimerKind.REQUEST, profile.request_id)
        self.phase = Phase.WAITING
        self.attempt: AttemptState | None = None
        self.attempts = 0
        self.failures = 0
        self.refusals = 0
        self.busy_answers = 0
        self.last_failure = ""
        self.was_shadowed = False

    @property
    def request_id(self) -> RequestId:
        return self.profile.request_id

    @property
    def next_deadline_ns(self) -> int:
        """While it waits, the end of its patience; afterwards its own deadline."""
        if self.phase is Phase.WAITING:
            return min(self.queue_deadline_ns, self.deadline_ns)
        return self.deadline_ns


class _ClassQueue:
    """Requests of one class by arrival number. Leaving is lazy: an entry that no longer waits is dropped later."""

    __slots__ = ("_heap", "_members")

    def __init__(self) -> None:
        self._heap: list[tuple[int, RequestState]] = []
        self._members: set[RequestId] = set()

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._members

    def join(self, request: RequestState) -> None:
        heapq.heappush(self._heap, (request.arrival_number, request))
        self._members.add(request.request_id)

    def leave(self, request_id: RequestId) -> None:
        self._members.discard(request_id)
        if len(self._heap) > 2 * len(self._members) + _SLACK:
            self._compact()

    def head(self) -> RequestState:
        """The earliest arrival. The queue must not be empty."""
        while self._heap[0][1].request_id not in self._members:
            heapq.heappop(self._heap)
        return self._heap[0][1]

    def __iter__(self) -> Iterator[RequestState]:
        return (request for _, request in sorted(self._entries(), key=_arrival_number))

    def _compact(self) -> None:
        self._heap = self._entries()
        heapq.heapify(self._heap)

    def _entries(self) -> list[tuple[int, RequestState]]:
        """Each member once; a request that left and came back may stand in the heap twice."""
        return list(
            {entry[1].request_id: entry for entry in self._heap if entry[1].request_id in self._members}.values()
        )


class WaitingRoom:
    """All waiting requests. Joining and leaving cost O(log n); the heads are visited in O(classes · log classes)."""

    def __init__(self) -> None:
        self._queues: dict[RequestClass, _ClassQueue] = {}
        self._length_of: dict[ModelName, int] = {}
        self._length_of_tenant: dict[TenantName, int] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __contains__(self, request: RequestState) -> bool:
        queue = self._queues.get(request.request_class)
        return queue is not None and request.request_id in queue

    def length(self, model: ModelName) -> int:
        return self._length_of.get(model, 0)

    def tenant_length(self, tenant: TenantName) -> int:
        return self._length_of_tenant.get(tenant, 0)

    def lengths(self) -> dict[ModelName, int]:
        return dict(self._length_of)

    def has_class(self, request_class: RequestClass) -> bool:
        return request_class in self._queues

    def join(self, request: RequestState) -> None:
        """Wait at the place that the arrival number gives, which for a returning request is its old one."""
        self._queues.setdefault(request.request_class, _ClassQueue()).join(request)
        self._count(request, 1)

    def leave(self, request: RequestState) -> None:
        queue = self._queues[request.request_class]
        queue.leave(request.request_id)
        if not queue:
            del self._queues[request.request_class]
        self._count(request, -1)

    def heads(self) -> list[tuple[int, RequestState]]:
        """The head of each class, as a heap by arrival number."""
        if not self._queues:
            return []
        heads = [(head.arrival_number, head) for head in (queue.head() for queue in self._queues.values())]
        heapq.heapify(heads)
        return heads

    def head_of(self, request_class: RequestClass) -> RequestState | None:
        queue = self._queues.get(request_class)
        return queue.head() if queue else None

    def __iter__(self) -> Iterator[RequestState]:
        """Everybody, class by class; for inspection, never for a decision."""
        for queue in self._queues.values():
            yield from queue

    def _count(self, request: RequestState, change: int) -> None:
        self._length += change
        _add(self._length_of, request.profile.model, change)
        _add(self._length_of_tenant, request.profile.tenant, change)


def _add(counts: dict[_Key, int], key: _Key, change: int) -> None:
    """Zero is not kept, so the map never holds more keys than there are requests."""
    count = counts.get(key, 0) + change
    if count:
        counts[key] = count
    else:
        del counts[key]


def _arrival_number(entry: tuple[int, RequestState]) -> int:
    return entry[0]
