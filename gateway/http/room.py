"""Bounds what all clients together hold in memory. It counts; it never waits."""

from __future__ import annotations

from typing import Self

from gateway.http.errors import GATEWAY_FULL, ClientFault


class Room:
    """How many requests, and how many bytes of their bodies, there is still room for."""

    def __init__(self, requests_max: int, bytes_max: int) -> None:
        self.requests = 0
        self.bytes = 0
        self._requests_max = requests_max
        self._bytes_max = bytes_max

    def hold(self, body_bytes: int) -> Held:
        """A place to take before the body is read. Entering it raises ClientFault when there is no room."""
        return Held(self, body_bytes)

    def has_place_for(self, body_bytes: int) -> bool:
        return self.requests < self._requests_max and self.bytes + body_bytes <= self._bytes_max


class Held:
    """One request's share of the room: as much as its body may need, then as much as it does."""

    __slots__ = ("_bytes", "_room")

    def __init__(self, room: Room, body_bytes: int) -> None:
        self._room = room
        self._bytes = body_bytes

    def __enter__(self) -> Self:
        if not self._room.has_place_for(self._bytes):
            raise ClientFault(GATEWAY_FULL)
        self._room.requests += 1
        self._room.bytes += self._bytes
        return self

    def __exit__(self, *_: object) -> None:
        self._room.requests -= 1
        self._room.bytes -= self._bytes

    def resize(self, body_bytes: int) -> None:
        self._room.bytes += body_bytes - self._bytes
        self._bytes = body_bytes
