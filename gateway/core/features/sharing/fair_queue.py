"""One queue shared fairly between tenants. Each tenant's requests form a queue by priority hint and arrival number, and
the next request is the head of the tenant that has been served least. With one tenant the queue is that tenant's. Hints
count among the requests of one tenant alone: they take no turn from another, and are ignored where tenants share an
account.

Heads compete in this order: first requests whose answer has begun; then those that return from a target, since their
turn had come before, and last those that leave room for other tenants; then the higher priority, which rises while a
request waits; then the lower counter; then the earlier arrival. Among counters within a slack, the prompt that an
available replica has cached most of wins.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from gateway.core.features.sharing.fair_shares import OTHERS, Account, FairShares, charge_of
from gateway.core.kernel.queues import ArrivalQueue, Queue, QueueFigures, QueueOrder, Turn
from gateway.core.kernel.request_class import RequestClass
from gateway.core.kernel.requests import RequestState

_WEIGHED_MAX: Final = 4
"""Most heads within the slack whose prompts are looked up in the prefix index."""
_COMES_BACK: Final = 0
_COMES: Final = 1
_LEAVES_ROOM: Final = 2
KnownShare = Callable[[RequestState], float]
"""Share of a request's prompt that a replica available to it has cached, 0 to 1."""


def leaves_room(shares: FairShares, request: RequestState) -> bool:
    """True if a request is to run only where there is room to spare, since its tenant runs more than its share. Never
    true for a request that was tried before or resumes an answer, that has one possible target or is held for one, or
    that another gateway forwarded."""
    if request.attempts or request.held is not None or request.origin_gateway_id is not None:
        return False
    has_one_place = request.request_class.pinned is not None or request.profile.is_control
    return not has_one_place and not request.profile.appends and shares.leaves_room(charge_of(request).account)


def _hinted(request: RequestState) -> int:
    """Priority hint of a request; 0 where its account is shared by several tenants."""
    hint = request.profile.hints.priority
    return 0 if not hint or charge_of(request).account.name == OTHERS else hint


class FairOrder(QueueOrder):
    """Order in which tenants share the queues."""

    def __init__(self, shares: FairShares, known_share: KnownShare) -> None:
        self._shares = shares
        self._known_share = known_share
        """Called where tenants' counters are too close to decide."""

    @property
    def is_contested(self) -> bool:
        """True if more than one tenant has waiting requests."""
        return self._shares.are_contested

    def queue(self) -> Queue:
        return FairQueue(self)

    def turn(self, request: RequestState) -> Turn:
        """Sort key of a head: class rank, whether its answer is still to begin, whether it returns, is new or leaves
        room, negated priority, counter, arrival number; without those of tenants where only one tenant waits."""
        if not self._shares.are_contested:
            return super().turn(request) if not _hinted(request) else self._hinted_turn(request)
        wanted = request.request_class
        account = charge_of(request).account
        priority = self._shares.priority_of(account, request.arrived_ns, self._shares.now_ns)
        coming = _COMES_BACK if request.attempts else _COMES
        if leaves_room(self._shares, request):
            coming = _LEAVES_ROOM
        rank, is_new, number = wanted.service_rank, not wanted.appends, request.arrival_number
        return rank, is_new, coming, -priority, account.counter, number, request

    def _hinted_turn(self, request: RequestState) -> Turn:
        """Sort key of a head while one tenant alone waits."""
        rank, is_new, coming, _, counter, number, _ = super().turn(request)
        return rank, is_new, coming, -_hinted(request), counter, number, request

    def best(self, heads: list[RequestState]) -> RequestState:
        """Head that is next among these."""
        turns = heapq.nsmallest(_WEIGHED_MAX, [self.turn(each) for each in heads])
        first = turns[0]
        slack = self._shares.slack
        if not slack or first[2] == _COMES_BACK:
            return first[-1]
        alike = [each[-1] for each in turns if each[:4] == first[:4] and each[4] <= first[4] + slack]
        if len(alike) == 1:
            return first[-1]
        shares = [self._known_share(each) for each in alike]
        return alike[shares.index(max(shares))]

    def ahead_of(self, request: RequestState, queues: Iterable[tuple[RequestClass, Queue]], /) -> int:
        """Requests served before this one: all of a better class, all whose answer has begun if its own has not, and
        all of a better priority; of its own tenant those that came before it; and of each other tenant as many as get
        their turn meanwhile, by weight, as though all requests had one size."""
        own = charge_of(request).account
        wanted = request.request_class
        alike: dict[str, list[float]] = {}
        ahead = 0
        for request_class, queue in queues:
            assert isinstance(queue, FairQueue), "this order made it"
            for account, length in queue.lengths():
                better = (
                    wanted.service_rank - request_class.service_rank,
                    request_class.appends - wanted.appends,
                    account.priority - own.priority,
                )
                if better > (0, 0, 0):
                    ahead += length
                elif better == (0, 0, 0):
                    known = alike.setdefault(account.name, [0.0, account.weight])
                    known[0] += length
        mine = alike.pop(own.name, [1.0, own.weight])[0]
        turns = sum(min(length, mine * weight / own.weight) for length, weight in alike.values())
        return ahead + int(turns) + max(0, int(mine) - 1)

    def queue_of(self, request: RequestState, /) -> object | None:
        """Account of the request's tenant. A tenant has two for a while if it is told apart only once another tenant is
        forgotten."""
        return None if request.queue_part is None else charge_of(request).account

    def why_later(self, request: RequestState, /) -> str:
        told = ""
        if leaves_room(self._shares, request):
            told = "; its tenant has more than its share, and leaves room for others"
        if not self._shares.are_contested:
            return told
        own = charge_of(request).account
        had_less = sum([each.counter < own.counter for each in self._shares.waiting.values()])
        return f"{told}; its tenant's turn comes after that of {had_less} others who had less" if had_less else told

    def figures(self) -> QueueFigures:
        shares = self._shares
        return QueueFigures(
            {each.name: each.waiting for each in shares.waiting.values()},
            shares.size,
            shares.forgotten,
            sum([shares.leaves_room(each) for each in shares.waiting.values()]),
        )


class FairQueue(Queue):
    """Queue of one class, with one queue per tenant, by arrival."""

    __slots__ = ("_length", "_order", "_queues")

    def __init__(self, order: FairOrder) -> None:
        self._order = order
        self._queues: dict[Account, ArrivalQueue] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def join(self, request: RequestState) -> None:
        account = charge_of(request).account
        queue = self._queues.get(account)
        if queue is None:
            queue = self._queues[account] = ArrivalQueue(by_priority=account.name != OTHERS)
        before = len(queue)
        queue.join(request)
        self._length += len(queue) - before

    def leave(self, request: RequestState) -> None:
        account = charge_of(request).account
        queue = self._queues[account]
        before = len(queue)
        queue.leave(request)
        self._length += len(queue) - before
        if not queue:
            del self._queues[account]

    def head(self) -> RequestState:
        """Next request of the queue, which must not be empty."""
        if len(self._queues) == 1:
            for queue in self._queues.values():
                return queue.head()
        return self._order.best([queue.head() for queue in self._queues.values()])

    def lengths(self) -> Iterator[tuple[Account, int]]:
        """Tenant accounts with waiting requests, and the number of each."""
        for account, queue in self._queues.items():
            yield account, len(queue)

    def __iter__(self) -> Iterator[RequestState]:
        for queue in self._queues.values():
            yield from queue
