"""Slots of one engine: how many requests it runs at once, how many slots are taken, and how soon one becomes free.

The number is declared by an operator, reported by the engine, or learnt. This module counts requests and decides
nothing.
"""

from __future__ import annotations

from typing import Final

_UNKNOWN_ROOM: Final = 8
"""Further requests that an engine with an unknown number of slots is assumed to have room for; once it runs more than
this, as many again as it runs."""
KV_FULL: Final = 0.9
"""Share of the KV cache in use from which requests may wait for blocks rather than for a slot."""
GIVEN_SLOT_NS: Final = 25_000_000.0
"""Weight of a slot that another request gives away, as nanoseconds of a wait for one: that request begins anew. A free
slot is preferred where it is as near."""
_FULL_PROBES: Final = 2
_LEARN: Final = 0.05
"""Weight of one more request's duration in the moving average: about the last twenty count."""


def wait_for_slot_ns(position: int, given: int, release_ns: float) -> float:
    """Nanoseconds that a request waits for a slot. `position`: its place among those that wait, 0 or less if a slot is
    free; `given`: slots that it and those before it would be given by requests that yield; `release_ns`: mean time
    between two that become free, 0 if not known."""
    if position <= 0 or not release_ns:
        return 0.0
    return max(min(GIVEN_SLOT_NS, position * release_ns), (position - given) * release_ns)


class EngineSlots:
    """The slots of one replica's engine."""

    __slots__ = ("_full_probes", "_learnt", "_peak", "_running_max", "declared", "duration_ns", "foreign", "total")

    def __init__(self, declared: int) -> None:
        self.declared = declared
        self.total = declared
        """Slots as declared, told or learnt, in that order; 0: not known."""
        self.foreign = 0
        """Requests in the engine at the last probe that this gateway had not sent."""
        self.duration_ns = 0.0
        """Mean time that a request of this gateway spends in the engine; 0: none has ended yet."""
        self._learnt = 0
        self._peak = 0
        """Most requests of this gateway at once since the last probe."""
        self._running_max = 0
        self._full_probes = 0
        """Probes that found the engine out of slots while it ran as many requests as it ever did."""

    @property
    def learnt(self) -> int:
        return self._learnt

    def forget(self) -> None:
        """Reset what was observed: the engine has restarted and may have another number of slots."""
        self._learnt = self._running_max = self._full_probes = self.foreign = 0
        self.total = self.declared

    def started(self, in_flight: int) -> None:
        """Note that one more request of this gateway is on its way; `in_flight` includes it."""
        self._peak = max(self._peak, in_flight)

    def ended(self, took_ns: int) -> None:
        """Note that a request of this gateway has completed."""
        self.duration_ns += (took_ns - self.duration_ns) * (_LEARN if self.duration_ns else 1.0)

    def observe(self, running: int, waiting: int, *, told: int, unread: int, in_flight: int, kv_usage: float) -> None:
        """Apply one probe. `told`: slots that the engine reports, 0 if it reports none; `unread`: requests of this
        gateway without a first token.

        The engine counts as out of slots when the waiting requests are at least those without a first token, so that it
        prefills no prompt, and its KV cache has room. A request that has just arrived looks the same, so `_FULL_PROBES`
        probes must agree while the engine runs as many requests as it ever did.
        """
        self.foreign = max(0, running + waiting - max(self._peak, in_flight))
        self._peak = in_flight
        if running > self._running_max:
            self._running_max, self._full_probes, self._learnt = running, 0, 0
        if running == self._running_max and 0 < waiting >= unread and running and kv_usage < KV_FULL:
            self._full_probes += 1
            if self._full_probes >= _FULL_PROBES:
                self._learnt = running
        self.total = self.declared or told or self._learnt

    def room(self, *, running: int, waiting: int, unreflected: int, in_flight: int, kv_usage: float) -> int:
        """Requests that the engine could begin at once; negative: number that wait for a slot. `unreflected`: requests
        of this gateway that the last probe cannot have counted."""
        if self.total:
            room = self.total - in_flight - self.foreign
        else:
            room = max(_UNKNOWN_ROOM, running) - waiting - unreflected
        return min(room, -waiting) if waiting and kv_usage >= KV_FULL else room

    def release_ns(self) -> float:
        """Mean time between two requests leaving while every slot is taken; 0: not known."""
        return self.duration_ns / self.total if self.total else 0.0
