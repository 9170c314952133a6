"""Waiting requests and their order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from gateway.core.kernel.events import RequestArrived
from gateway.core.kernel.queues import ArrivalQueue, QueueOrder, Turn
from gateway.core.kernel.request_class import RequestClass
from gateway.core.kernel.requests import Hold, RequestRecord, RequestState
from gateway.core.kernel.waiting_requests import WaitingRequests
from gateway.core.vocabulary import Hints, Hops, ModelName, ResidencyStamp, ServiceClass, TenantName
from tests.support.core import ANYWHERE, MODEL, SECOND, TENANT, US, policy, profile

LLAMA = RequestClass(MODEL, ANYWHERE, True, True)
MISTRAL = RequestClass(ModelName("mistral"), ANYWHERE, True, True)


def request(number: int, request_class: RequestClass = LLAMA, tenant: str = TENANT, priority: int = 0) -> RequestState:
    asked = profile(f"q{number}", model=request_class.model, tenant=TenantName(tenant))
    asked = structs.replace(asked, hints=Hints(priority=priority))
    return RequestState(
        asked,
        request_class,
        record=RequestRecord(RequestArrived(asked, SECOND), policy(US), 0),
        arrival_number=number,
        arrived_ns=0,
        deadline_ns=SECOND,
        queue_deadline_ns=SECOND,
        stamp=ResidencyStamp(US, TENANT, ANYWHERE, ""),
        hops=Hops(),
        origin_gateway_id=None,
    )


def told(turns: list[Turn]) -> list[tuple[int, RequestState]]:
    return [(number, request) for *_, number, request in turns]


def test_each_class_has_a_head_and_the_earliest_of_them_comes_first() -> None:
    waiting = WaitingRequests()
    first, second, third, fourth = (request(n, kind) for n, kind in enumerate((MISTRAL, LLAMA, LLAMA, MISTRAL)))
    for each in (fourth, third, second, first):
        waiting.join(each)
    assert told(waiting.heads())[0] == (0, first)
    assert sorted(number for number, _ in told(waiting.heads())) == [0, 1]
    waiting.leave(second)
    assert waiting.head_of(LLAMA) is third
    assert list(waiting) == [first, fourth, third]


@pytest.mark.parametrize(("by_priority", "expected"), [(True, [3, 2, 4, 0, 1]), (False, [0, 1, 2, 3, 4])])
def test_a_priority_hint_counts_where_a_queue_goes_by_it(by_priority: bool, expected: list[int]) -> None:
    queue, order = ArrivalQueue(by_priority=by_priority), list[int]()
    for number, priority in enumerate((0, 0, 3, 5, 3)):
        queue.join(request(number, priority=priority))
    assert [each.arrival_number for each in queue] == expected
    while len(queue):
        head = queue.head()
        queue.leave(head)
        order.append(head.arrival_number)
    assert order == expected


def test_whoever_comes_back_has_its_old_place_and_stands_there_once() -> None:
    waiting = WaitingRequests()
    early, late = request(1), request(2)
    for each in (early, late):
        waiting.join(each)
    waiting.leave(early)
    waiting.join(early)
    assert waiting.head_of(LLAMA) is early
    assert list(waiting) == [early, late]


def test_another_one_with_the_same_id_is_not_the_one_that_left() -> None:
    """A forward that was refused returns under the same request id."""
    waiting = WaitingRequests()
    before, later, again = request(1), request(3), request(1)
    again.arrival_number = 7
    for each in (before, later):
        waiting.join(each)
    waiting.leave(before)
    waiting.join(again)
    assert waiting.head_of(LLAMA) is later
    waiting.leave(later)
    assert waiting.head_of(LLAMA) is again
    assert list(waiting) == [again]


def test_it_counts_by_model_and_tenant_and_keeps_nothing_of_those_who_left() -> None:
    waiting = WaitingRequests()
    everybody = [request(1), request(2, tenant="acme"), request(3, MISTRAL, "acme")]
    for each in everybody:
        waiting.join(each)
    assert (len(waiting), waiting.lengths()) == (3, {MODEL: 2, MISTRAL.model: 1})
    assert [waiting.tenant_length(TenantName(name)) for name in ("acme", TENANT, "other")] == [2, 1, 0]
    assert all(each in waiting for each in everybody)
    for each in everybody:
        waiting.leave(each)
    assert (len(waiting), waiting.lengths(), waiting.heads()) == (0, {}, [])
    assert (waiting.has_class(LLAMA), waiting.head_of(LLAMA), everybody[0] in waiting) == (False, None, False)


def test_many_who_left_before_their_turn_cost_no_memory() -> None:
    waiting = WaitingRequests()
    last = request(1_000)
    waiting.join(last)
    for number in range(1_000):
        one = request(number)
        waiting.join(one)
        waiting.leave(one)
    line = waiting._queues[LLAMA]
    assert isinstance(line, ArrivalQueue)
    assert len(line._heap) < 100
    assert waiting.head_of(LLAMA) is last


def test_whoever_never_stood_in_a_queue_leaves_nothing_behind() -> None:
    waiting, newcomer = WaitingRequests(), request(0)
    waiting.leave(newcomer)
    assert (len(waiting), newcomer in waiting, waiting.heads(), waiting.lengths()) == (0, False, [], {})


def test_those_before_a_newcomer_are_all_of_its_model_who_rank_as_high_and_came_before() -> None:
    waiting = WaitingRequests()
    batch = replace(LLAMA, service_class=ServiceClass.BATCH)
    elsewhere = replace(LLAMA, failed_replicas=1)
    first, second, held, yields, other = (
        request(number, kind) for number, kind in enumerate((LLAMA, elsewhere, LLAMA, batch, MISTRAL))
    )
    ahead = []
    for each in (first, second, held, yields, other):
        waiting.join(each)
        ahead.append(waiting.ahead_of(each))
        if each is held:
            waiting.hold(each, Hold(0, 1, b""))
    assert ahead == [0, 1, 2, 3, 0]
    assert waiting.ahead_of(first) == 2, "who yields goes after it, and it is not before itself"


def test_an_answer_that_has_begun_goes_before_all_new_ones_of_its_class() -> None:
    waiting = WaitingRequests()
    appends, batch = replace(LLAMA, appends=True), replace(LLAMA, service_class=ServiceClass.BATCH)
    new, first, yields, second = (request(number, kind) for number, kind in enumerate((LLAMA, appends, batch, appends)))
    for each in (new, first, yields, second):
        waiting.join(each)
    assert [waiting.ahead_of(each) for each in (second, new, yields)] == [1, 2, 3]
    assert [waiting.length_before(each) for each in (appends, LLAMA, MISTRAL)] == [2, 4, 0]
    heads = waiting.heads()
    assert [waiting.next_of(heads) for _ in range(3)] == [first, new, yields]
    waiting.leave(first)
    waiting.leave(second)
    assert waiting.length_before(appends) == 0


def test_no_other_order_is_set_while_somebody_waits() -> None:
    waiting = WaitingRequests()
    waiting.join(request(0))
    with pytest.raises(AssertionError, match="another order"):
        waiting.order_by(QueueOrder())


class TestHeld:
    """Requests held for one replica each."""

    def waiting(self, *slots: int) -> tuple[WaitingRequests, list[RequestState]]:
        waiting, everybody = WaitingRequests(), [request(number) for number in range(len(slots))]
        for each in everybody:
            waiting.join(each)
        for each, slot in zip(everybody, slots, strict=True):
            waiting.hold(each, Hold(slot, 1, b""))
        return waiting, everybody

    def test_whoever_is_held_waits_on_and_is_the_head_of_nobody_else(self) -> None:
        waiting = WaitingRequests()
        first, second = request(1), request(2)
        waiting.join(first)
        waiting.join(second)
        hold = Hold(3, 1, b"")
        waiting.hold(first, hold)
        assert (first.held, waiting.homes) == (hold, 0b1000)
        assert (len(waiting), waiting.lengths(), first in waiting) == (2, {MODEL: 2}, True)
        assert waiting.tenant_length(TenantName(TENANT)) == 2
        assert waiting.head_of(LLAMA) is second
        assert told(waiting.heads()) == [(2, second)]
        assert told(waiting.held_heads(3)) == [(1, first)]
        assert waiting.held_heads(2) == []
        assert list(waiting) == [second, first]

    def test_it_leaves_as_it_stands_and_nothing_of_it_is_kept(self) -> None:
        waiting, (only,) = self.waiting(3)
        waiting.leave(only)
        assert (only.held, waiting.homes, len(waiting), waiting.lengths(), only in waiting) == (None, 0, 0, {}, False)
        assert (waiting._held, waiting.held_heads(3), waiting.held_head_of(3, LLAMA, is_cold=False)) == ({}, [], None)

    def test_those_of_one_replica_have_a_head_for_each_class_and_for_the_cold(self) -> None:
        waiting = WaitingRequests()
        kinds = [(LLAMA, False), (LLAMA, True), (MISTRAL, False), (LLAMA, False), (LLAMA, True)]
        everybody = [request(number, kind) for number, (kind, _) in enumerate(kinds)]
        for each, (_, is_cold) in reversed(list(zip(everybody, kinds, strict=True))):
            waiting.join(each)
            waiting.hold(each, Hold(0, 1, b"", is_cold=is_cold))
        heads = told(waiting.held_heads(0))
        assert heads[0] == (0, everybody[0])
        assert sorted(number for number, _ in heads) == [0, 1, 2]
        assert waiting.held_head_of(0, LLAMA, is_cold=True) is everybody[1]
        assert waiting.held_head_of(0, MISTRAL, is_cold=True) is None
        assert waiting.held_for(0) == 5
        assert waiting.held_for(1) == 0

    def test_from_one_replica_to_another_and_back_to_its_old_place(self) -> None:
        waiting, (first, second) = self.waiting(0, 0)
        waiting.hold(first, Hold(1, 1, b""))
        assert (waiting.homes, waiting.held_for(0), waiting.held_for(1)) == (0b11, 1, 1)
        assert waiting.held_head_of(1, LLAMA, is_cold=False) is first
        waiting.hold(first, Hold(0, 1, b""))
        assert (waiting.homes, told(waiting.held_heads(0))[0]) == (0b01, (0, first))
        assert second in waiting

    def test_once_a_replica_is_gone_its_own_wait_for_anybody(self) -> None:
        waiting, (first, second, other) = self.waiting(0, 0, 1)
        waiting.hold(second, Hold(0, 1, b"", is_cold=True))
        late = request(3)
        waiting.join(late)
        assert sorted(each.arrival_number for each in waiting.release(0)) == [0, 1]
        assert (first.held, second.held, waiting.homes) == (None, None, 0b10)
        assert told(waiting.heads()) == [(0, first)]
        assert list(waiting) == [first, second, late, other], "each at its old place"
        assert (len(waiting), waiting.length(MODEL), waiting.release(0)) == (4, 4, [])

    def test_all_heads_are_in_order_of_arrival(self) -> None:
        waiting, everybody = self.waiting(1, 0, 1)
        late, early = request(9), request(-1, MISTRAL)
        for each in (late, early):
            waiting.join(each)
        assert waiting.all_heads() == [early, everybody[0], everybody[1], late]
