"""Queue of requests that may go to exactly the same targets, and the order of all queues: by service class, requests
whose answer has begun before new ones, and by arrival, unless a feature puts another order in its place."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Final

from gateway.core.kernel.request_class import RequestClass
from gateway.core.kernel.requests import RequestState
from gateway.core.value import value
from gateway.core.vocabulary import RequestId, TenantName

_SLACK: Final = 64
Turn = tuple[int, bool, int, int, float, int, RequestState]
"""Sort key of a head, the smallest first: class rank, whether its answer is still to begin, three numbers of the order,
arrival number; and the request itself."""


class Queue:
    """Requests of one class."""

    __slots__ = ()

    def __len__(self) -> int:
        raise NotImplementedError

    def __iter__(self) -> Iterator[RequestState]:
        raise NotImplementedError

    def join(self, request: RequestState) -> None:
        raise NotImplementedError

    def leave(self, request: RequestState) -> None:
        raise NotImplementedError

    def head(self) -> RequestState:
        """Next request of the queue, which must not be empty."""
        raise NotImplementedError


_Entry = tuple[int, int, RequestState]
"""Negated priority hint, arrival number, and the request."""


class ArrivalQueue(Queue):
    """Queue by arrival number. Leaving is lazy: an entry that no longer waits is dropped later."""

    __slots__ = ("_by_priority", "_heap", "_members")

    def __init__(self, *, by_priority: bool = False) -> None:
        """`by_priority`: requests with a higher priority hint go first, which suits requests of one tenant alone."""
        self._by_priority = by_priority
        self._heap: list[_Entry] = []
        self._members: dict[RequestId, RequestState] = {}
        """Waiting requests by id. The heap may hold an earlier request of the same id, as when a forward comes
        again."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[RequestState]:
        return (request for *_, request in sorted(self._entries(), key=_turn_of))

    def join(self, request: RequestState) -> None:
        priority = request.profile.hints.priority if self._by_priority else 0
        heapq.heappush(self._heap, (-priority, request.arrival_number, request))
        self._members[request.request_id] = request

    def leave(self, request: RequestState) -> None:
        self._members.pop(request.request_id, None)
        if len(self._heap) > 2 * len(self._members) + _SLACK:
            self._compact()

    def head(self) -> RequestState:
        """Next request: the earliest arrival among those of the highest priority. The queue must not be empty."""
        while not self._is_member(self._heap[0][-1]):
            heapq.heappop(self._heap)
        return self._heap[0][-1]

    def _is_member(self, request: RequestState) -> bool:
        return self._members.get(request.request_id) is request

    def _compact(self) -> None:
        self._heap = self._entries()
        heapq.heapify(self._heap)

    def _entries(self) -> list[_Entry]:
        """Heap entries of the members, each once; a request that left and came back may stand in the heap twice."""
        return list({entry[-1].request_id: entry for entry in self._heap if self._is_member(entry[-1])}.values())


@value
class QueueFigures:
    """Figures of the queues that an order keeps apart, for the metrics page."""

    waiting: dict[TenantName, int]
    """Waiting requests by tenant, of tenants that have a queue of their own."""
    known: int
    forgotten: int
    leaving_room: int
    """Tenants with waiting requests that leave room for others."""


class QueueOrder:
    """Order in which queued requests get their turn: by service class, whether their answer has begun, and arrival. A
    feature may put another order in its place."""

    @property
    def is_contested(self) -> bool:
        """True if starting one request may change the order of the others."""
        return False

    def queue(self) -> Queue:
        """Make an empty queue."""
        return ArrivalQueue()

    def turn(self, request: RequestState) -> Turn:
        """Sort key of the head of a queue among the heads of all queues."""
        wanted = request.request_class
        return wanted.service_rank, not wanted.appends, 0, 0, 0.0, request.arrival_number, request

    def ahead_of(self, request: RequestState, queues: Iterable[tuple[RequestClass, Queue]], /) -> int:
        """Requests in these queues that get their turn before this one, which has joined one of them last."""
        own = _order_of(request.request_class)
        return max(0, sum([len(queue) for request_class, queue in queues if _order_of(request_class) <= own]) - 1)

    def queue_of(self, request: RequestState, /) -> object | None:  # noqa: ARG002
        """Queue in which the request waits, among those whose turns go by arrival; None: there is only one."""
        return None

    def why_later(self, request: RequestState, /) -> str:  # noqa: ARG002
        """Words for operators on what a request lets go before it, each part after a semicolon; no other tenant is
        named."""
        return ""

    def figures(self) -> QueueFigures:
        return QueueFigures({}, 0, 0, 0)


def _order_of(request_class: RequestClass) -> tuple[int, bool]:
    return request_class.service_rank, not request_class.appends


def _turn_of(entry: _Entry) -> tuple[int, int]:
    return entry[:2]
