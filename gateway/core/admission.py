"""Who waits: one first-come-first-served queue per request class, where class heads compete by arrival number.

A class holds requests that could go to exactly the same targets, so one that may go nowhere never blocks one that may.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TypeVar

from gateway.core.requests import Hold, RequestClass, RequestState
from gateway.core.vocabulary import ModelName, PoolName, RequestId, TenantName

_SLACK = 64
_Key = TypeVar("_Key")


class _ClassQueue:
    """Requests of one class by arrival number. Leaving is lazy: an entry that no longer waits is dropped later."""

    __slots__ = ("_heap", "_members")

    def __init__(self) -> None:
        self._heap: list[tuple[int, RequestState]] = []
        self._members: dict[RequestId, RequestState] = {}
        """Who waits: another request may have had the same id before, as a forward that comes again has."""

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._members

    def join(self, request: RequestState) -> None:
        heapq.heappush(self._heap, (request.arrival_number, request))
        self._members[request.request_id] = request

    def leave(self, request_id: RequestId) -> None:
        self._members.pop(request_id, None)
        if len(self._heap) > 2 * len(self._members) + _SLACK:
            self._compact()

    def head(self) -> RequestState:
        """The earliest arrival. The queue must not be empty."""
        while not self._is_member(self._heap[0][1]):
            heapq.heappop(self._heap)
        return self._heap[0][1]

    def _is_member(self, request: RequestState) -> bool:
        return self._members.get(request.request_id) is request

    def __iter__(self) -> Iterator[RequestState]:
        return (request for _, request in sorted(self._entries(), key=_arrival_number))

    def _compact(self) -> None:
        self._heap = self._entries()
        heapq.heapify(self._heap)

    def _entries(self) -> list[tuple[int, RequestState]]:
        """Each member once; a request that left and came back may stand in the heap twice."""
        return list({entry[1].request_id: entry for entry in self._heap if self._is_member(entry[1])}.values())


class WaitingRoom:
    """All waiting requests. Joining and leaving cost O(log n); the heads are visited in O(classes · log classes).

    Whoever is held for one replica stands in a queue of its class there, and is looked at when that replica has
    changed: it blocks nobody who goes elsewhere.
    """

    def __init__(self) -> None:
        self._queues: dict[RequestClass, _ClassQueue] = {}
        self._held: dict[int, dict[tuple[RequestClass, bool], _ClassQueue]] = {}
        """By the replica's slot, by class and by whether they are cold."""
        self.homes = 0
        """Mask of the slots for which somebody is held."""
        self._length_of: dict[ModelName, int] = {}
        self._length_of_tenant: dict[TenantName, int] = {}
        self._length_of_pool: dict[tuple[ModelName, PoolName], int] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __contains__(self, request: RequestState) -> bool:
        hold = request.held
        if hold is None:
            queue = self._queues.get(request.request_class)
        else:
            queue = self._held.get(hold.slot, {}).get((request.request_class, hold.is_cold))
        return queue is not None and request.request_id in queue

    def length(self, model: ModelName) -> int:
        return self._length_of.get(model, 0)

    def tenant_length(self, tenant: TenantName) -> int:
        return self._length_of_tenant.get(tenant, 0)

    def lengths(self) -> dict[ModelName, int]:
        return dict(self._length_of)

    @property
    def tells_pools_apart(self) -> bool:
        """Does anybody wait for one pool rather than for another?"""
        return bool(self._length_of_pool)

    def pool_length(self, model: ModelName, pool: PoolName) -> int:
        """Of those that wait for a model, the ones that are meant for this pool."""
        return self._length_of_pool.get((model, pool), 0)

    def pool_lengths(self) -> dict[tuple[ModelName, PoolName], int]:
        return dict(self._length_of_pool)

    def has_class(self, request_class: RequestClass) -> bool:
        return request_class in self._queues

    def join(self, request: RequestState) -> None:
        """Wait at the place that the arrival number gives, which for a returning request is its old one."""
        self._queues.setdefault(request.request_class, _ClassQueue()).join(request)
        self._count(request, 1)

    def leave(self, request: RequestState) -> None:
        self._take_out(request)
        self._count(request, -1)

    def hold(self, request: RequestState, hold: Hold) -> None:
        """It waits already; from now on for one replica."""
        self._take_out(request)
        request.held = hold
        key = (request.request_class, hold.is_cold)
        self._held.setdefault(hold.slot, {}).setdefault(key, _ClassQueue()).join(request)
        self.homes |= 1 << hold.slot

    def release(self, slot: int) -> list[RequestState]:
        """Nobody is held for this replica any more; gives who was. They wait on, for anybody."""
        released = self.all_held_for(slot)
        for request in released:
            self._take_out(request)
            self._queues.setdefault(request.request_class, _ClassQueue()).join(request)
        return released

    def all_held_for(self, slot: int) -> list[RequestState]:
        return [request for queue in self._held.get(slot, {}).values() for request in queue]

    def held_for(self, slot: int) -> int:
        """How many are held for this replica."""
        return sum(len(queue) for queue in self._held.get(slot, {}).values())

    def held_heads(self, slot: int) -> list[tuple[int, RequestState]]:
        """The head of each class that is held for this replica, as a heap by arrival number."""
        heads = [(head.arrival_number, head) for head in (queue.head() for queue in self._held.get(slot, {}).values())]
        heapq.heapify(heads)
        return heads

    def held_head_of(self, slot: int, request_class: RequestClass, *, is_cold: bool) -> RequestState | None:
        queue = self._held.get(slot, {}).get((request_class, is_cold))
        return queue.head() if queue else None

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
        for queues in self._held.values():
            for queue in queues.values():
                yield from queue

    def all_heads(self) -> list[RequestState]:
        """Of each class, whoever is first of those that wait for anybody, and of those that wait for each replica."""
        queues = [*self._queues.values(), *(queue for held in self._held.values() for queue in held.values())]
        return sorted((queue.head() for queue in queues), key=_arrivals)

    def _take_out(self, request: RequestState) -> None:
        hold = request.held
        if hold is None:
            queue = self._queues[request.request_class]
            queue.leave(request.request_id)
            if not queue:
                del self._queues[request.request_class]
            return
        request.held = None
        held = self._held[hold.slot]
        queue = held[request.request_class, hold.is_cold]
        queue.leave(request.request_id)
        if not queue:
            del held[request.request_class, hold.is_cold]
        if not held:
            del self._held[hold.slot]
            self.homes &= ~(1 << hold.slot)

    def _count(self, request: RequestState, change: int) -> None:
        self._length += change
        _add(self._length_of, request.profile.model, change)
        _add(self._length_of_tenant, request.profile.tenant, change)
        fit = request.request_class.fit
        if fit is not None and fit.preferred:
            _add(self._length_of_pool, (request.profile.model, fit.preferred[0]), change)


def _add(counts: dict[_Key, int], key: _Key, change: int) -> None:
    """Zero is not kept, so the map never holds more keys than there are requests."""
    count = counts.get(key, 0) + change
    if count:
        counts[key] = count
    else:
        del counts[key]


def _arrivals(request: RequestState) -> int:
    return request.arrival_number


def _arrival_number(entry: tuple[int, RequestState]) -> int:
    return entry[0]
