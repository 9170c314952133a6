"""Who waits, and who is next."""

from __future__ import annotations

from gateway.core.admission import WaitingRoom
from gateway.core.requests import RequestClass, RequestState
from gateway.core.vocabulary import Hops, ModelName, ResidencyStamp, TenantName
from tests.support.core import ANYWHERE, MODEL, SECOND, TENANT, US, profile

LLAMA = RequestClass(MODEL, ANYWHERE, True, True)
MISTRAL = RequestClass(ModelName("mistral"), ANYWHERE, True, True)


def request(number: int, request_class: RequestClass = LLAMA, tenant: str = TENANT) -> RequestState:
    return RequestState(
        profile(f"q{number}", model=request_class.model, tenant=TenantName(tenant)),
        request_class,
        arrival_number=number,
        arrived_ns=0,
        deadline_ns=SECOND,
        queue_deadline_ns=SECOND,
        stamp=ResidencyStamp(US, TENANT, ANYWHERE, ""),
        hops=Hops(),
        origin_gateway_id=None,
    )


def test_each_class_has_a_head_and_the_earliest_of_them_comes_first() -> None:
    room = WaitingRoom()
    first, second, third, fourth = (request(n, kind) for n, kind in enumerate((MISTRAL, LLAMA, LLAMA, MISTRAL)))
    for each in (fourth, third, second, first):
        room.join(each)
    assert room.heads()[0] == (0, first)
    assert sorted(number for number, _ in room.heads()) == [0, 1]
    room.leave(second)
    assert room.head_of(LLAMA) is third
    assert list(room) == [first, fourth, third]


def test_whoever_comes_back_has_its_old_place_and_stands_there_once() -> None:
    room = WaitingRoom()
    early, late = request(1), request(2)
    for each in (early, late):
        room.join(each)
    room.leave(early)
    room.join(early)
    assert room.head_of(LLAMA) is early
    assert list(room) == [early, late]


def test_it_counts_by_model_and_tenant_and_keeps_nothing_of_those_who_left() -> None:
    room = WaitingRoom()
    everybody = [request(1), request(2, tenant="acme"), request(3, MISTRAL, "acme")]
    for each in everybody:
        room.join(each)
    assert (len(room), room.lengths()) == (3, {MODEL: 2, MISTRAL.model: 1})
    assert [room.tenant_length(TenantName(name)) for name in ("acme", TENANT, "other")] == [2, 1, 0]
    assert all(each in room for each in everybody)
    for each in everybody:
        room.leave(each)
    assert (len(room), room.lengths(), room.heads()) == (0, {}, [])
    assert (room.has_class(LLAMA), room.head_of(LLAMA), everybody[0] in room) == (False, None, False)


def test_many_who_left_before_their_turn_cost_no_memory() -> None:
    room = WaitingRoom()
    last = request(1_000)
    room.join(last)
    for number in range(1_000):
        one = request(number)
        room.join(one)
        room.leave(one)
    assert len(room._queues[LLAMA]._heap) < 100
    assert room.head_of(LLAMA) is last
