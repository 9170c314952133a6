"""Waiting requests of one gateway: one queue per request class.

A class holds requests that may go to exactly the same targets, so a request that no target takes never blocks one of
another class. The heads of the classes compete by one order, which is first come, first served unless a feature sets
another. The module queues requests and never places them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from gateway.core.kernel.queues import Queue, QueueOrder, Turn
from gateway.core.kernel.request_class import RequestClass
from gateway.core.kernel.requests import Hold, RequestState
from gateway.core.vocabulary import ModelName, PoolName, ServiceClass, TenantName

_INTERACTIVE: Final = ServiceClass.INTERACTIVE
_Key = TypeVar("_Key")


class WaitingRequests:
    """All waiting requests. Joining and leaving cost O(log n); the heads are visited in O(classes · log classes).

    A request that is held for one replica stands in a separate queue of its class at that replica. It is looked at
    again when that replica has changed, and blocks no request that may go elsewhere.
    """

    def __init__(self) -> None:
        self.order = QueueOrder()
        self._queues: dict[RequestClass, Queue] = {}
        self._held: dict[int, dict[tuple[RequestClass, bool], Queue]] = {}
        """Queues of held requests, by the slot of the replica and then by class and by whether the hold is cold
        (`Hold.is_cold`)."""
        self.homes = 0
        """Mask of the slots of replicas for which requests are held."""
        self._length_of: dict[ModelName, int] = {}
        self._length_of_tenant: dict[TenantName, int] = {}
        self._length_of_pool: dict[tuple[ModelName, PoolName], int] = {}
        self.count = 0
        """Number of waiting requests."""
        self._yielding: dict[ModelName, int] = {}
        """Number of waiting requests that are not interactive, by model."""
        self._appending: dict[ModelName, int] = {}
        """Number of waiting requests whose answer has begun, by model."""

    def __len__(self) -> int:
        return self.count

    def __contains__(self, request: RequestState) -> bool:
        return request.is_queued

    def length(self, model: ModelName) -> int:
        return self._length_of.get(model, 0)

    def appending(self, model: ModelName | None = None) -> int:
        """Number of waiting requests whose answer has begun, for a model or for all."""
        return sum(self._appending.values()) if model is None else self._appending.get(model, 0)

    def length_before(self, request_class: RequestClass) -> int:
        """Number of requests for the model that would count before one more of this class: those whose answer has
        begun before another such one, all that wait before a new one."""
        model = request_class.model
        return self.appending(model) if request_class.appends else self.length(model)

    def interactive_length(self, model: ModelName) -> int:
        """Number of interactive requests that wait for a model."""
        return self._length_of.get(model, 0) - self._yielding.get(model, 0)

    def any_interactive(self) -> bool:
        """Return whether any request waits that is served as interactive."""
        return self.count > sum(self._yielding.values())

    def tenant_length(self, tenant: TenantName) -> int:
        return self._length_of_tenant.get(tenant, 0)

    def lengths(self) -> dict[ModelName, int]:
        return dict(self._length_of)

    def lengths_told(self) -> dict[ModelName, int]:
        """Queue lengths that peers are told, by model: waiting interactive requests alone, since a forwarded request
        stands in line behind those."""
        if not self._yielding:
            return self._length_of
        told = {model: length - self._yielding.get(model, 0) for model, length in self._length_of.items()}
        return {model: length for model, length in told.items() if length}

    @property
    def tells_pools_apart(self) -> bool:
        """True while a waiting request prefers one pool of its model over others."""
        return bool(self._length_of_pool)

    def pool_length(self, model: ModelName, pool: PoolName) -> int:
        """Number of requests waiting for the model that prefer this pool."""
        return self._length_of_pool.get((model, pool), 0)

    def pool_lengths(self) -> dict[tuple[ModelName, PoolName], int]:
        return dict(self._length_of_pool)

    def has_class(self, request_class: RequestClass) -> bool:
        return request_class in self._queues

    def order_by(self, order: QueueOrder) -> None:
        """Set the order of all queues, before any request waits."""
        assert not self.count, "requests wait by another order"
        assert type(self.order) is QueueOrder, "another feature orders the queues"
        self.order = order

    def join(self, request: RequestState) -> None:
        """Queue a request at the place that its arrival number gives; a request that returns takes its old place."""
        self._put_in(request)
        self._count(request, 1)
        request.is_queued = True

    def leave(self, request: RequestState) -> None:
        """Remove a request from the queues, if it stands in one."""
        if request.is_queued:
            request.is_queued = False
            self._take_out(request)
            self._count(request, -1)

    def unhold(self, request: RequestState) -> None:
        """Move a held request back to the queue of its class, where it waits for any target."""
        self._take_out(request)
        self._put_in(request)

    def hold(self, request: RequestState, hold: Hold) -> None:
        """Move a waiting request to the queue of those held for one replica."""
        self._take_out(request)
        request.held = hold
        key = (request.request_class, hold.is_cold)
        held = self._held.setdefault(hold.slot, {})
        queue = held.get(key)
        if queue is None:
            queue = held[key] = self.order.queue()
        queue.join(request)
        self.homes |= 1 << hold.slot

    def release(self, slot: int) -> list[RequestState]:
        """Return all requests held for this replica to the queues of their classes, and return them."""
        released = self.all_held_for(slot)
        for request in released:
            self.unhold(request)
        return released

    def all_held_for(self, slot: int) -> list[RequestState]:
        return [request for queue in self._held.get(slot, {}).values() for request in queue]

    def held_for(self, slot: int) -> int:
        """Number of requests held for this replica."""
        return sum(len(queue) for queue in self._held.get(slot, {}).values())

    def held_heads(self, slot: int) -> list[Turn]:
        """Head of each class held for this replica, as a heap of turns."""
        return self._turns_in(self._held.get(slot, {}).values())

    def held_head_of(self, slot: int, request_class: RequestClass, *, is_cold: bool) -> RequestState | None:
        queue = self._held.get(slot, {}).get((request_class, is_cold))
        return queue.head() if queue else None

    def heads(self) -> list[Turn]:
        """Head of each class, as a heap of turns."""
        return self._turns_in(self._queues.values()) if self._queues else []

    def _turns_in(self, queues: Iterable[Queue]) -> list[Turn]:
        turns = [self.order.turn(queue.head()) for queue in queues]
        heapq.heapify(turns)
        return turns

    def next_of(self, heads: list[Turn]) -> RequestState:
        """Pop the request whose turn it is from such a heap. Where starting a request since the heap was made may
        have changed the order, turns are computed again."""
        while True:
            turn = heapq.heappop(heads)
            if not self.order.is_contested:
                return turn[-1]
            now = self.order.turn(self._queue_of(turn[-1]).head())
            if now <= turn or not heads or now < heads[0]:
                return now[-1]
            heapq.heappush(heads, now)

    def add_to(self, heads: list[Turn], request: RequestState) -> None:
        heapq.heappush(heads, self.order.turn(request))

    def _queue_of(self, request: RequestState) -> Queue:
        hold = request.held
        if hold is None:
            return self._queues[request.request_class]
        return self._held[hold.slot][request.request_class, hold.is_cold]

    def unheld(self) -> list[tuple[RequestClass, Queue]]:
        """Queues of requests that wait for any target, with their classes."""
        return list(self._queues.items())

    def queues(self, model: ModelName | None = None) -> list[tuple[RequestClass, Queue]]:
        """Queues with their classes, for one model or for all; for estimates and inspection."""
        queues = list(self._queues.items())
        for held in self._held.values():
            queues += [(request_class, queue) for (request_class, _), queue in held.items()]
        return [each for each in queues if model is None or each[0].model == model]

    def ahead_of(self, request: RequestState) -> int:
        """Requests that get their turn before this one, which has joined a queue just now."""
        return self.order.ahead_of(request, self.queues(request.profile.model))

    def head_of(self, request_class: RequestClass) -> RequestState | None:
        queue = self._queues.get(request_class)
        return queue.head() if queue else None

    def __iter__(self) -> Iterator[RequestState]:
        """All waiting requests, class by class; for inspection, never for a decision."""
        for queue in self._queues.values():
            yield from queue
        for queues in self._held.values():
            for queue in queues.values():
                yield from queue

    def all_heads(self) -> list[RequestState]:
        """First request of each queue: of each class those that wait for any target, and those held for each replica.
        Ordered by arrival."""
        queues = [*self._queues.values(), *(queue for held in self._held.values() for queue in held.values())]
        return sorted((queue.head() for queue in queues), key=_arrivals)

    def _put_in(self, request: RequestState) -> None:
        queue = self._queues.get(request.request_class)
        if queue is None:
            queue = self._queues[request.request_class] = self.order.queue()
        queue.join(request)

    def _take_out(self, request: RequestState) -> None:
        hold = request.held
        if hold is None:
            queue = self._queues[request.request_class]
            queue.leave(request)
            if not queue:
                del self._queues[request.request_class]
            return
        request.held = None
        held = self._held[hold.slot]
        queue = held[request.request_class, hold.is_cold]
        queue.leave(request)
        if not queue:
            del held[request.request_class, hold.is_cold]
        if not held:
            del self._held[hold.slot]
            self.homes &= ~(1 << hold.slot)

    def _count(self, request: RequestState, change: int) -> None:
        self.count += change
        _add(self._length_of, request.profile.model, change)
        _add(self._length_of_tenant, request.profile.tenant, change)
        if request.request_class.service_class is not _INTERACTIVE:
            _add(self._yielding, request.profile.model, change)
        if request.request_class.appends:
            _add(self._appending, request.profile.model, change)
        fit = request.request_class.fit
        if fit is not None and fit.preferred:
            _add(self._length_of_pool, (request.profile.model, fit.preferred[0]), change)


def _add(counts: dict[_Key, int], key: _Key, change: int) -> None:
    """Add to a count and drop it at zero, so that the map never holds more keys than there are requests."""
    count = counts.get(key, 0) + change
    if count:
        counts[key] = count
    else:
        del counts[key]


def _arrivals(request: RequestState) -> int:
    return request.arrival_number
