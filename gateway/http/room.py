"""Bounds what all clients together hold in memory. It counts; it never waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.http.errors import GATEWAY_FULL, ClientFault


class Room:
    """How many requests, and how many bytes of their bodies, there is still room for."""

    def __init__(self, requests_max: int, bytes_max: int) -> None:
        self.requests = 0
        self.bytes = 0
        self._requests_max = requests_max
        self._bytes_max = bytes_max

    @contextmanager
    def hold(self, body_bytes: int) -> Iterator[Held]:
        """Take a place before the body is read. Raises ClientFault when there is no room."""
        if self.requests >= self._requests_max or self.bytes + body_bytes > self._bytes_max:
            raise ClientFault(GATEWAY_FULL)
        self.requests += 1
        held = Held(self)
        held.resize(body_bytes)
        try:
            yield held
        finally:
            held.resize(0)
            self.requests -= 1


class Held:
    """One request's share of the room: as much as its body may need, then as much as it does."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._bytes = 0

    def resize(self, body_bytes: int) -> None:
        self._room.bytes += body_bytes - self._bytes
        self._bytes = body_bytes
