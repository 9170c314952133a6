"""Limits the memory that other gateways' requests hold here, in total and per peer, and the number of each peer's. A
peer is known by its certificate, or by its address if it shows none. A forward announces the length of its request, and
is admitted or refused at once.
"""

from __future__ import annotations

from collections import Counter
from typing import Self

from gateway.config.sections import PeeringConfig


class ForwardMemory:
    """Places and bytes that are held for each peer, and how many more may be."""

    def __init__(self, bytes_max: int, peer_bytes_max: int, peer_places_max: int) -> None:
        self._bytes_max = bytes_max
        self._peer_bytes_max = peer_bytes_max
        self._peer_places_max = peer_places_max
        self._held: Counter[str] = Counter()
        self._places: Counter[str] = Counter()

    @classmethod
    def of(cls, peering: PeeringConfig) -> Self:
        """Limits of the configuration. Each peer has the same share of all places as of all memory, and at least one
        place."""
        bytes_max, peer_bytes_max = peering.forwards_held_max_bytes, peering.forwards_held_peer_max_bytes
        return cls(bytes_max, peer_bytes_max, max(1, peering.forwards_max * peer_bytes_max // bytes_max))

    @property
    def bytes(self) -> int:
        return self._held.total()

    @property
    def peers(self) -> int:
        """Number of peers that bytes are held for."""
        return len(self._held)

    def place_of(self, peer: str, size: int) -> MemoryClaim | None:
        """Reserve a place and room for a request. None: there is none at this moment."""
        has_place = self._places[peer] < self._peer_places_max
        return MemoryClaim(self, peer, size) if has_place and self.fits(peer, size) else None

    def fits(self, peer: str, size: int) -> bool:
        """True if `size` bytes more fit."""
        return self._held[peer] + size <= self._peer_bytes_max and self.bytes + size <= self._bytes_max

    def enter(self, peer: str) -> None:
        self._places[peer] += 1

    def leave(self, peer: str) -> None:
        self._places[peer] -= 1
        if not self._places[peer]:
            del self._places[peer]

    def take(self, peer: str, size: int) -> None:
        if size:
            self._held[peer] += size

    def give_back(self, peer: str, size: int) -> None:
        self._held[peer] -= size
        if not self._held[peer]:
            del self._held[peer]


class MemoryClaim:
    """Place and room of one forward, taken until it is closed."""

    __slots__ = ("_is_closed", "_peer", "_room", "_size")

    def __init__(self, room: ForwardMemory, peer: str, size: int) -> None:
        self._room = room
        self._peer = peer
        self._size = size
        self._is_closed = False
        room.enter(peer)
        room.take(peer, size)

    def close(self) -> None:
        """Give all of it back; a second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._room.leave(self._peer)
            self._room.give_back(self._peer, self._size)

    def keep(self, more: int) -> bool:
        """Take `more` bytes for the answer, or give some back if negative. False: there is no room, and none was
        taken."""
        if more > 0 and not self._room.fits(self._peer, more):
            return False
        if more > 0:
            self._room.take(self._peer, more)
        else:
            self._room.give_back(self._peer, -more)
        self._size += more
        return True
