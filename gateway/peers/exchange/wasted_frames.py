"""Limits the frames without use that another gateway may send before its stream is ended. It counts, and reads no
clock.
"""

from __future__ import annotations

WINDOW_NS = 1_000_000_000
"""Time over which wasted frames are counted."""
WASTED_MAX = 1000
"""Frames and messages of one gateway that may make no progress in a second: some 20 ms of processing time. A correct
gateway sends next to none."""
CREDIT_MIN = 1024
"""Bytes: a frame that gives less credit, or carries less of a request that is not complete yet, counts as wasted."""


class WastedFrameLimit:
    """Wasted frames of one gateway, on all of its streams together."""

    def __init__(self) -> None:
        self._began_ns = -WINDOW_NS
        self._wasted = 0

    def waste(self, now_ns: int) -> bool:
        """Count one wasted frame. False: the gateway has sent more than WASTED_MAX in this second."""
        if now_ns >= self._began_ns + WINDOW_NS:
            self._began_ns, self._wasted = now_ns, 0
        self._wasted += 1
        return self._wasted <= WASTED_MAX

    def is_fresh(self, now_ns: int) -> bool:
        """True if a second has passed, so that no frame counts any more."""
        return now_ns >= self._began_ns + WINDOW_NS
