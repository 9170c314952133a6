"""How much of another gateway's talk may be for nothing before its stream is ended. It counts, and reads no clock."""

from __future__ import annotations

_SECOND_NS = 1_000_000_000
WASTED_MAX = 1000
"""Frames and messages in a second that moved nothing, of one gateway: some 20 ms of our time. One that behaves has next
to none of them."""
CREDIT_MIN = 1024
"""Who gives less credit at a time gives it for nothing, and so does who sends less of a request that goes on."""


class Patience:
    """With one gateway, whatever the number of its streams."""

    def __init__(self) -> None:
        self._began_ns = -_SECOND_NS
        self._wasted = 0
        self.wasted_total = 0

    def waste(self, now_ns: int) -> bool:
        """One more. False: it has run out."""
        if now_ns >= self._began_ns + _SECOND_NS:
            self._began_ns, self._wasted = now_ns, 0
        self._wasted += 1
        self.wasted_total += 1
        return self._wasted <= WASTED_MAX

    def is_fresh(self, now_ns: int) -> bool:
        """Nothing is counted against it any more."""
        return now_ns >= self._began_ns + _SECOND_NS
