"""Bounds what other gateways' requests hold in memory here, in all and per peer. It counts what is said by nobody.

A message on an exchange tells its length, and has room or has none. One in a call of its own has no length before it
has come, so that on its way it is taken to be as large as any may be. Waiting is for those alone, since they are soon
over; where running requests take all the room, there is none.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Self

from gateway.config.sections import PeeringConfig

_SECOND_NS = 1_000_000_000
WAITING_EACH_MAX = 64
"""Forwards of one peer that wait for their turn to be read."""


class PeerRoom:
    """How much may still be held for whom."""

    def __init__(self, bytes_max: int, peer_bytes_max: int, message_bytes_max: int, turn_wait_s: float) -> None:
        self._bytes_max = bytes_max
        self._peer_bytes_max = peer_bytes_max
        self.message_bytes_max = message_bytes_max
        self._turn_wait_s = turn_wait_s
        self._held: Counter[str] = Counter()
        self._reading: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._changed = asyncio.Event()

    @classmethod
    def of(cls, peering: PeeringConfig) -> Self:
        """A message that has not come by the time its origin gives it up is not waited for any longer."""
        return cls(
            peering.forwards_held_max_bytes,
            peering.forwards_held_peer_max_bytes,
            peering.message_max_bytes,
            peering.accept_timeout_ns / _SECOND_NS,
        )

    @property
    def bytes(self) -> int:
        return self._held.total()

    @property
    def peers(self) -> int:
        """Whoever anything is counted for."""
        return len(self._held.keys() | self._reading.keys() | self._waiting.keys())

    async def place_for(self, peer: str) -> Place | None:
        """Where a message may be read into. None: there is no room, and soon will not be."""
        if not self.fits(peer) and not await self._gets_a_turn(peer):
            return None
        return Place(self, peer)

    def place_of(self, peer: str, size: int) -> Place | None:
        """For a message whose length was told. None: there is no room now."""
        if not self.fits(peer, size):
            return None
        return Place(self, peer, size)

    async def _gets_a_turn(self, peer: str) -> bool:
        if self._waiting[peer] >= WAITING_EACH_MAX:
            return False
        self._waiting[peer] += 1
        try:
            async with asyncio.timeout(self._turn_wait_s):
                while self._reading.total() and not self.fits(peer):
                    await self._changed.wait()
        except TimeoutError:
            pass
        finally:
            _take(self._waiting, peer, 1)
        return self.fits(peer)

    def fits(self, peer: str, size: int | None = None) -> bool:
        """None: of a message whose length nobody knows yet."""
        size = self.message_bytes_max if size is None else size
        return self._held[peer] + size <= self._peer_bytes_max and self.bytes + size <= self._bytes_max

    def begin(self, peer: str) -> None:
        self._held[peer] += self.message_bytes_max
        self._reading[peer] += 1

    def take(self, peer: str, size: int) -> None:
        if size:
            self._held[peer] += size

    def settle(self, peer: str, size: int) -> None:
        """The message has come."""
        _take(self._reading, peer, 1)
        self.give_back(peer, self.message_bytes_max - size)

    def give_back(self, peer: str, size: int) -> None:
        _take(self._held, peer, size)
        self._changed.set()
        self._changed = asyncio.Event()


class Place:
    """One forward's part of the room; to be entered as soon as it is got."""

    def __init__(self, room: PeerRoom, peer: str, size: int | None = None) -> None:
        """None: nobody knows yet how large the message is."""
        self._room = room
        self._peer = peer
        self._size = size

    def __enter__(self) -> Self:
        if self._size is None:
            self._room.begin(self._peer)
        else:
            self._room.take(self._peer, self._size)
        return self

    def __exit__(self, *_: object) -> None:
        if self._size is None:
            self.settle(0)
        self._room.give_back(self._peer, self._size or 0)

    def keep(self, more: int) -> bool:
        """Of what is answered, so many bytes more; or fewer, if negative. False: there is no room, and none was
        taken."""
        assert self._size is not None, "an answer comes after its request"
        if more > 0 and not self._room.fits(self._peer, more):
            return False
        if more > 0:
            self._room.take(self._peer, more)
        else:
            self._room.give_back(self._peer, -more)
        self._size += more
        return True

    def settle(self, size: int) -> None:
        """The message is this large, and there is no other."""
        assert self._size is None, "a message comes once"
        self._size = size
        self._room.settle(self._peer, size)


def _take(counter: Counter[str], peer: str, amount: int) -> None:
    counter[peer] -= amount
    if not counter[peer]:
        del counter[peer]
