"""Limits the memory that other gateways' requests hold here, in total and per peer. A peer is known by its certificate,
or by its address if it shows none.

A message on an exchange announces its length, and is admitted or refused at once. A message in a call of its own has no
length until it has arrived, so it counts as the largest allowed message until then. Only such messages are waited for,
since they arrive soon; if running requests hold all the memory, there is no waiting.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Self

from gateway.config.sections import PeeringConfig

_SECOND_NS = 1_000_000_000
WAITING_EACH_MAX = 64
"""Forwards of one peer that may wait for their turn to be read."""


class PeerRoom:
    """Bytes that are held for each peer, and how many more may be."""

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
        """Limits of the configuration. A message waits for its turn up to `accept_timeout`, when its origin gives it
        up."""
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
        """Number of peers that bytes are held for or that wait for room."""
        return len(self._held.keys() | self._reading.keys() | self._waiting.keys())

    async def place_for(self, peer: str) -> Place | None:
        """Reserve room for a message of unknown length, after waiting if other messages are arriving. None: there is no
        room, and none is expected soon."""
        if not self.fits(peer) and not await self._gets_a_turn(peer):
            return None
        return Place(self, peer)

    def place_of(self, peer: str, size: int) -> Place | None:
        """Reserve room for a message of a known length. None: there is no room at this moment."""
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
        """True if `size` bytes more fit; None stands for the largest message, since the length is not known yet."""
        size = self.message_bytes_max if size is None else size
        return self._held[peer] + size <= self._peer_bytes_max and self.bytes + size <= self._bytes_max

    def begin(self, peer: str) -> None:
        self._held[peer] += self.message_bytes_max
        self._reading[peer] += 1

    def take(self, peer: str, size: int) -> None:
        if size:
            self._held[peer] += size

    def settle(self, peer: str, size: int) -> None:
        """Replace the reservation for the largest message by the size of the one that has arrived."""
        _take(self._reading, peer, 1)
        self.give_back(peer, self.message_bytes_max - size)

    def give_back(self, peer: str, size: int) -> None:
        _take(self._held, peer, size)
        self._changed.set()
        self._changed = asyncio.Event()


class Place:
    """Room of one forward. Enter it directly after it was obtained."""

    def __init__(self, room: PeerRoom, peer: str, size: int | None = None) -> None:
        """`size` is None while the message's length is not known."""
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
        """Take `more` bytes for the answer, or give some back if negative. False: there is no room, and none was
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
        """The message has arrived and has this many bytes."""
        assert self._size is None, "a message comes once"
        self._size = size
        self._room.settle(self._peer, size)


def _take(counter: Counter[str], peer: str, amount: int) -> None:
    counter[peer] -= amount
    if not counter[peer]:
        del counter[peer]
