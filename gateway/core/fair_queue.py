"""One queue shared fairly between tenants. Each tenant's requests form a line by arrival number, and the next request
is the head of the tenant that has been served least. With one tenant the queue is first come, first served.

Heads compete in this order: first requests that return from a target, since their turn had come before, and last those
that leave room for other tenants; then the higher priority, which rises while a request waits; then the lower counter;
then the earlier arrival. Among counters within a slack, the prompt that an available replica has cached most of wins.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Final

from gateway.core.fair_shares import Account, Charge, FairShares
from gateway.core.requests import RequestState
from gateway.core.vocabulary import RequestId

_SLACK = 64
_WEIGHED_MAX: Final = 4
"""Most heads within the slack whose prompts are looked up in the prefix index."""
Turn = tuple[int, int, int, float, int, RequestState]
"""Sort key of a head, the smallest first: class rank, whether it returns, is new or leaves room, negated priority,
counter, arrival number; and the request itself."""
_COMES_BACK: Final = 0
_COMES: Final = 1
_LEAVES_ROOM: Final = 2
KnownShare = Callable[[RequestState], float]
"""Share of a request's prompt that a replica available to it has cached, 0 to 1."""


def charge_of(request: RequestState) -> Charge:
    charge = request.charge
    assert charge is not None, "whoever waits has an account"
    return charge


def leaves_room(shares: FairShares, request: RequestState) -> bool:
    """True if a request is to run only where there is room to spare, since its tenant runs more than its share. Never
    true for a request that was tried before or resumes an answer, that has one possible target or is held for one, or
    that another gateway forwarded."""
    if request.attempts or request.held is not None or request.origin_gateway_id is not None:
        return False
    has_one_place = request.request_class.pinned is not None or request.profile.is_control
    return not has_one_place and not request.profile.goes_on and shares.leaves_room(charge_of(request).account)


class Line:
    """Requests of one tenant by arrival number. Leaving is lazy: an entry that no longer waits is dropped later."""

    __slots__ = ("_heap", "_members")

    def __init__(self) -> None:
        self._heap: list[tuple[int, RequestState]] = []
        self._members: dict[RequestId, RequestState] = {}
        """Waiting requests by id. The heap may hold an earlier request of the same id, as when a forward comes
        again."""

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
        """Earliest arrival. The line must not be empty."""
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
        """Heap entries of the members, each once; a request that left and came back may stand in the heap twice."""
        return list({entry[1].request_id: entry for entry in self._heap if self._is_member(entry[1])}.values())


class FairOrder:
    """Order in which heads compete at this moment."""

    def __init__(self, shares: FairShares, known_share: KnownShare) -> None:
        self._shares = shares
        self._known_share = known_share

    def turn(self, request: RequestState) -> Turn:
        """Sort key of a head; its class and arrival number alone where only one tenant waits."""
        rank = request.request_class.service_rank
        if not self._shares.are_contested:
            return rank, 0, 0, 0.0, request.arrival_number, request
        account = charge_of(request).account
        priority = self._shares.priority_of(account, request.arrived_ns, self._shares.now_ns)
        coming = _COMES_BACK if request.attempts else _COMES
        if leaves_room(self._shares, request):
            coming = _LEAVES_ROOM
        return rank, coming, -priority, account.counter, request.arrival_number, request

    def best(self, heads: list[RequestState]) -> RequestState:
        """Head that is next among these."""
        turns = heapq.nsmallest(_WEIGHED_MAX, [self.turn(each) for each in heads])
        first = turns[0]
        slack = self._shares.slack
        if not slack or first[1] == _COMES_BACK:
            return first[5]
        alike = [each[5] for each in turns if each[:3] == first[:3] and each[3] <= first[3] + slack]
        if len(alike) == 1:
            return first[5]
        shares = [self._known_share(each) for each in alike]
        return alike[shares.index(max(shares))]


class FairQueue:
    """Queue of requests that may go to exactly the same targets, with one line per tenant."""

    __slots__ = ("_length", "_lines", "_order")

    def __init__(self, order: FairOrder) -> None:
        self._order = order
        self._lines: dict[Account, Line] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __contains__(self, request: RequestState) -> bool:
        charge = request.charge
        line = None if charge is None else self._lines.get(charge.account)
        return line is not None and request.request_id in line

    def join(self, request: RequestState) -> None:
        account = charge_of(request).account
        line = self._lines.get(account)
        if line is None:
            line = self._lines[account] = Line()
        before = len(line)
        line.join(request)
        self._length += len(line) - before

    def leave(self, request: RequestState) -> None:
        account = charge_of(request).account
        line = self._lines[account]
        before = len(line)
        line.leave(request.request_id)
        self._length += len(line) - before
        if not line:
            del self._lines[account]

    def head(self) -> RequestState:
        """Next request of the queue, which must not be empty."""
        if len(self._lines) == 1:
            for line in self._lines.values():
                return line.head()
        return self._order.best([line.head() for line in self._lines.values()])

    def lines(self) -> Iterator[tuple[Account, int]]:
        """Tenant accounts with waiting requests, and the number of each."""
        for account, line in self._lines.items():
            yield account, len(line)

    def __iter__(self) -> Iterator[RequestState]:
        for line in self._lines.values():
            yield from line


def _arrival_number(entry: tuple[int, RequestState]) -> int:
    return entry[0]
