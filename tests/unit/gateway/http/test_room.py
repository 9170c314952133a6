from __future__ import annotations

import pytest

from gateway.http import errors
from gateway.http.errors import ClientFault
from gateway.http.room import Room


def test_requests_are_counted_and_bounded() -> None:
    room = Room(requests_max=2, bytes_max=100)
    with room.hold(1), room.hold(1):
        with pytest.raises(ClientFault) as caught, room.hold(1):
            pass
        assert caught.value.kind is errors.GATEWAY_FULL
    assert (room.requests, room.bytes) == (0, 0)


def test_bytes_are_counted_and_bounded() -> None:
    room = Room(requests_max=10, bytes_max=100)
    with room.hold(60):
        with pytest.raises(ClientFault), room.hold(41):
            pass
        with room.hold(40):
            assert room.bytes == 100
    assert room.bytes == 0


def test_what_a_body_did_not_need_is_given_back() -> None:
    room = Room(requests_max=10, bytes_max=100)
    with room.hold(100) as held:
        held.resize(10)
        with room.hold(90):
            assert room.bytes == 100
    assert room.bytes == 0
