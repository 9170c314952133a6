"""Notices that the other end of a link has fallen silent, by the intervals of its signs of life so far.

The time-out adapts to the link: it grows with the longest recent interval, so that loss and jitter seldom look like
silence, and a clean link is given up within two seconds. Pure: times are arguments, and the caller keeps the timer.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_MILLISECOND_NS: Final = 1_000_000

BEAT_NS: Final = 250 * _MILLISECOND_NS
"""Longest time for which a living end of a link says nothing."""
TIMEOUT_MIN_NS: Final = 6 * BEAT_NS
"""Time-out of a link whose signs of life are never late."""
TIMEOUT_MAX_NS: Final = 6_000 * _MILLISECOND_NS
"""Longest time-out that lateness gives a link."""
LATENESS_FACTOR: Final = 7
"""Factor on the greatest recent lateness that is added to the time-out. TCP waits 1, 3, 7 and 15 retransmission
time-outs for a segment that is lost 1 to 4 times in a row. The greatest lateness of a link that loses single segments
is one of these and the jitter; the jitter makes up for the rest of the 15."""
_BLOCK: Final = 64
"""Intervals of which only the longest is remembered."""
_BLOCKS: Final = 8
"""Blocks that the time-out is taken from, besides the current one."""
LEARNT_AFTER: Final = 16
"""Intervals after which a link is known well enough for a time-out of its own."""


class SilenceDetector:
    """One link's signs of life, and the conclusion from their absence.

    `look` is to be called at the latest when it asked to be: a later call, or sign of life, shows that this process
    itself did not run, and time in which it could hear nothing is no silence of the other end.
    """

    __slots__ = (
        "_block_max_ns",
        "_blocks_ns",
        "_ceiling_ns",
        "_excused_ns",
        "_heard_ns",
        "_in_block",
        "_look_ns",
        "_seen",
    )

    def __init__(self, ceiling_ns: int) -> None:
        """`ceiling_ns`: the time-out until the link is known, and the longest one."""
        self._ceiling_ns = ceiling_ns
        self._blocks_ns: deque[int] = deque(maxlen=_BLOCKS)
        """Longest interval of each of the last complete blocks."""
        self._block_max_ns = 0
        self._in_block = 0
        self._seen = 0
        self._heard_ns: int | None = None
        """Time of the last sign of life on this connection; None before the first."""
        self._excused_ns = 0
        """Time since then in which this process did not run."""
        self._look_ns: int | None = None
        """Time for which the next look was asked."""

    @property
    def timeout_ns(self) -> int:
        """Silence after which the other end counts as gone."""
        if self._seen < LEARNT_AFTER:
            return self._ceiling_ns
        longest_ns = max(self._block_max_ns, max(self._blocks_ns, default=0))
        late_ns = max(0, longest_ns - BEAT_NS)
        return min(self._ceiling_ns, TIMEOUT_MAX_NS, TIMEOUT_MIN_NS + LATENESS_FACTOR * late_ns)

    def begin(self) -> None:
        """Begin with a new connection: the time since the last sign of life on the old one is no interval."""
        self._heard_ns = self._look_ns = None
        self._excused_ns = 0

    def hear(self, now_ns: int) -> None:
        """Note a sign of life."""
        self._excuse(now_ns)
        if self._heard_ns is not None:
            self._learn(min(now_ns - self._heard_ns - self._excused_ns, self.timeout_ns))
        self._heard_ns, self._excused_ns = now_ns, 0

    def look(self, now_ns: int) -> int:
        """Nanoseconds until the next look is due; 0: the other end is silent."""
        self._excuse(now_ns)
        self._look_ns = None
        if self._heard_ns is None:
            return BEAT_NS
        left_ns = self._heard_ns + self._excused_ns + self.timeout_ns - now_ns
        if left_ns <= 0:
            return 0
        wait_ns = min(left_ns, BEAT_NS)
        self._look_ns = now_ns + wait_ns
        return wait_ns

    def _excuse(self, now_ns: int) -> None:
        """Excuse the time by which the look that was asked for is overdue."""
        if self._look_ns is not None and now_ns > self._look_ns:
            self._excused_ns += now_ns - self._look_ns
            self._look_ns = now_ns

    def _learn(self, interval_ns: int) -> None:
        self._seen += 1
        self._block_max_ns = max(self._block_max_ns, interval_ns)
        self._in_block += 1
        if self._in_block == _BLOCK:
            self._blocks_ns.append(self._block_max_ns)
            self._block_max_ns = self._in_block = 0
