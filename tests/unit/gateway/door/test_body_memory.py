from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from gateway.core.vocabulary import GatewayId, RequestId, TenantName
from gateway.door import errors
from gateway.door.body_memory import BodyMemory, BodyOwner, BodyReservation, owners_of
from gateway.door.errors import ClientFault, ErrorKind
from gateway.door.parse import Caller
from gateway.door.settings import HttpSettings
from gateway.request.callers import ClientKey, KeyId
from tests.support.core import US

SETTINGS = HttpSettings(GatewayId("us-1"), US)
HALF = (BodyOwner("key", "a", 0.5),)
OTHER_HALF = (BodyOwner("key", "b", 0.5),)


@contextmanager
def held_in(room: BodyMemory, holders: Sequence[BodyOwner] = ()) -> Iterator[BodyReservation]:
    held = room.hold(holders)
    try:
        yield held
    finally:
        held.close()


def refused(held: BodyReservation, more_bytes: int) -> ErrorKind:
    with pytest.raises(ClientFault) as caught:
        held.grow(more_bytes)
    return caught.value.kind


def test_requests_are_counted_and_bounded() -> None:
    room = BodyMemory(requests_max=2, bytes_max=100, body_bytes_max=10)
    with held_in(room) as one, held_in(room) as two:
        one.settle()
        two.settle()
        with pytest.raises(ClientFault) as caught, held_in(room):
            pass
        assert caught.value.kind is errors.GATEWAY_FULL
    assert (room.requests, room.bytes) == (0, 0)


def test_a_request_whose_body_is_still_to_come_keeps_nobody_out() -> None:
    room = BodyMemory(requests_max=1, bytes_max=100, body_bytes_max=10)
    with held_in(room) as late, held_in(room) as quick:
        quick.settle()
        with pytest.raises(ClientFault):
            late.settle()
    with held_in(room) as late:
        late.settle()
        assert room.requests == 1
    assert room.requests == 0


def test_bytes_are_counted_as_they_come_and_bounded() -> None:
    room = BodyMemory(requests_max=10, bytes_max=100, body_bytes_max=100)
    with held_in(room) as one, held_in(room) as two:
        one.grow(60)
        assert refused(two, 41) is errors.GATEWAY_FULL
        two.grow(20)
        two.grow(20)
        assert room.bytes == 100
    assert room.bytes == 0


def test_what_is_announced_is_looked_at_and_takes_nothing() -> None:
    room = BodyMemory(requests_max=10, bytes_max=100, body_bytes_max=100)
    with held_in(room) as one:
        one.check(100)
        assert room.bytes == 0
        with pytest.raises(ClientFault):
            one.check(101)


def test_a_holder_gets_its_share_of_what_others_leave_so_that_each_leaves_some() -> None:
    room = BodyMemory(requests_max=10, bytes_max=1000, body_bytes_max=1)
    with held_in(room, HALF) as one, held_in(room, HALF) as more, held_in(room, OTHER_HALF) as two:
        one.grow(300)
        more.grow(200)
        assert refused(more, 1) is errors.BODIES_SHARE_EXCEEDED
        two.grow(250)
        assert refused(two, 1) is errors.BODIES_SHARE_EXCEEDED
    assert (room.bytes, room.holders) == (0, 0)


def test_however_many_there_are_the_next_one_finds_room() -> None:
    room = BodyMemory(requests_max=100, bytes_max=1 << 20, body_bytes_max=1)
    with ExitStack() as stack:
        for number in range(10):
            held = stack.enter_context(held_in(room, [BodyOwner("key", str(number), 0.5)]))
            while room.objection(64, [BodyOwner("key", str(number), 0.5)]) is None:
                held.grow(64)
            assert held._bytes > 0


def test_no_share_is_smaller_than_a_body() -> None:
    room = BodyMemory(requests_max=10, bytes_max=100, body_bytes_max=80)
    with held_in(room, HALF) as one:
        one.grow(80)
        assert refused(one, 1) is errors.BODIES_SHARE_EXCEEDED


def test_keys_of_a_tenant_share_its_share() -> None:
    room = BodyMemory(requests_max=10, bytes_max=1000, body_bytes_max=1)
    tenant = BodyOwner("tenant", "acme", 0.75)
    with held_in(room, [*HALF, tenant]) as one, held_in(room, [*OTHER_HALF, tenant]) as two:
        one.grow(500)
        two.grow(250)
        with held_in(room, [BodyOwner("key", "c", 0.5), tenant]) as three:
            assert refused(three, 1) is errors.BODIES_SHARE_EXCEEDED
        with held_in(room, [BodyOwner("key", "d", 0.5), BodyOwner("tenant", "other", 0.75)]) as innocent:
            innocent.grow(100)


def caller(key: str | None = None) -> Caller:
    found = None if key is None else ClientKey(KeyId(key), TenantName("acme"))
    return Caller(RequestId("r"), TenantName("acme"), ("", ""), key=found)


def test_whose_share_it_is() -> None:
    by_key = [("key", "k"), ("tenant", "acme")]
    assert [each[:2] for each in owners_of(caller("k"), "10.0.0.1", SETTINGS)] == by_key
    trusting = HttpSettings(GatewayId("us-1"), US, trust_tenant_header=True)
    assert [each[:2] for each in owners_of(caller(), "10.0.0.1", trusting)] == [("tenant", "acme")]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.1", ["10.0.0.1"]),
        ("2001:db8::1", ["2001:0db8:0000:0000"]),
        ("2001:db8::ffff:2", ["2001:0db8:0000:0000"]),
        ("fe80::1%eth0", ["fe80:0000:0000:0000"]),
        ("127.0.0.1", []),
        ("::1", []),
        (None, []),
    ],
)
def test_without_keys_it_is_an_address_s_but_never_this_machine_s(address: str | None, expected: list[str]) -> None:
    assert [each.name for each in owners_of(caller(), address, SETTINGS)] == expected
