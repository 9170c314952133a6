"""Notices that the other end of a link has fallen silent, by the intervals of its signs of life so far.

The time-out adapts to the link: it grows with the longest recent interval, so that loss and jitter seldom look like
silence, and a clean link is given up within two seconds. Pure: times are arguments, and the caller keeps the timer.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_MILLISECOND_NS: Final = 1_000_000

BEAT_NS: Final = 250 * _MILLISECOND_NS
"""Interval of the beats of a living end of a link: signs of life that it sends beside all else that it says, however
much that is."""
TIMEOUT_MIN_NS: Final = 6 * BEAT_NS
"""Time-out of a link whose signs of life are never late."""
TIMEOUT_MAX_NS: Final = 6_000 * _MILLISECOND_NS
"""Longest time-out that lateness gives a link."""
LATENESS_FACTOR: Final = 7
"""Factor on the greatest recent lateness that is added to the time-out. TCP waits 1, 3, 7 and 15 retransmission
time-outs for a segment that is lost 1 to 4 times in a row. The greatest lateness of a link that loses single segments
is one of these and the jitter; the jitter makes up for the rest of the 15."""
BLOCK_NS: Final = 64 * BEAT_NS
"""Duration of a block of intervals of which only the longest is remembered."""
BLOCKS: Final = 8
"""Blocks that the time-out is taken from, besides the current one."""
LEARNT_AFTER_NS: Final = 16 * BEAT_NS
"""Time with signs of life after which a link is known well enough for a time-out of its own."""
STALL_NS: Final = 20 * _MILLISECOND_NS
"""Lateness of a timer from which this process counts as having been stopped: what arrived meanwhile may wait unread."""
GRACES_MAX: Final = 4
"""Most times in a row that a stopped process is given a `BEAT_NS` to read what has arrived. A process that is late all
the time, and reads nothing in that time, would otherwise notice no silence at all."""


def next_beat_ns(beat_ns: int, now_ns: int) -> int:
    """Time of the next beat of an end whose last was due at `beat_ns`: beats keep to their times, and those that were
    missed are left out."""
    return beat_ns + (max(0, now_ns - beat_ns) // BEAT_NS + 1) * BEAT_NS


class SilenceDetector:
    """One link's signs of life, and the conclusion from their absence.

    Every message is a sign of life, but lateness is learnt from beats alone: the interval between two of them is known,
    and that between two messages is not.

    `look` is to be called at the latest when it asked to be: a later call, or sign of life, shows that this process
    itself did not run. Time in which it could hear nothing is no silence of the other end, and after it there is time
    to read what has arrived before the other end is called silent.
    """

    __slots__ = (
        "_beat_excused_ns",
        "_beat_ns",
        "_block_max_ns",
        "_block_ns",
        "_blocks_ns",
        "_ceiling_ns",
        "_excused_ns",
        "_graces",
        "_look_ns",
        "_seen_ns",
        "_since_ns",
    )

    def __init__(self, ceiling_ns: int) -> None:
        """`ceiling_ns`: the time-out until the link is known, and the longest one."""
        self._ceiling_ns = ceiling_ns
        self._blocks_ns: deque[int] = deque(maxlen=BLOCKS)
        """Longest interval of each of the last complete blocks."""
        self._block_max_ns = 0
        self._block_ns = 0
        """Sum of the current block's intervals. A block is of a duration, not of a count of messages."""
        self._seen_ns = 0
        """Sum of all intervals."""
        self._beat_ns: int | None = None
        """Time of the last beat on this connection; None before the first."""
        self._beat_excused_ns = 0
        """Time since the last beat in which this process did not run."""
        self._since_ns: int | None = None
        """Time from which silence is measured: the last sign of life, or the beginning of the connection after it; None
        before the first sign of life."""
        self._excused_ns = 0
        """Time since `_since_ns` in which this process did not run."""
        self._graces = 0
        """Times since `_since_ns` that this process was given to read what has arrived."""
        self._look_ns: int | None = None
        """Time for which the next look was asked."""

    @property
    def timeout_ns(self) -> int:
        """Silence after which the other end counts as gone."""
        if self._seen_ns < LEARNT_AFTER_NS:
            return self._ceiling_ns
        longest_ns = max(self._block_max_ns, max(self._blocks_ns, default=0))
        late_ns = max(0, longest_ns - BEAT_NS)
        return min(self._ceiling_ns, TIMEOUT_MAX_NS, TIMEOUT_MIN_NS + LATENESS_FACTOR * late_ns)

    def begin(self, now_ns: int) -> None:
        """Begin with a new connection. The time since the last beat on the old one is no interval, and silence of an
        end that was heard before is measured from now on."""
        self._excuse(now_ns)
        self._measure_from(None if self._since_ns is None else now_ns)
        self._beat_ns = None

    def hear(self, now_ns: int, *, is_beat: bool) -> None:
        """Note a sign of life."""
        self._excuse(now_ns)
        if is_beat:
            if self._beat_ns is not None:
                self._learn(min(now_ns - self._beat_ns - self._beat_excused_ns, self.timeout_ns))
            self._beat_ns, self._beat_excused_ns = now_ns, 0
        self._measure_from(now_ns)

    def look(self, now_ns: int) -> int:
        """Nanoseconds until the next look is due; 0: the other end is silent."""
        late_ns = self._excuse(now_ns)
        self._look_ns = None
        if self._since_ns is None:
            return BEAT_NS
        wait_ns = min(self._since_ns + self._excused_ns + self.timeout_ns - now_ns, BEAT_NS)
        if wait_ns <= 0:
            if late_ns < STALL_NS or self._graces >= GRACES_MAX:
                return 0
            self._graces += 1
            wait_ns = BEAT_NS
        self._look_ns = now_ns + wait_ns
        return wait_ns

    def _measure_from(self, since_ns: int | None) -> None:
        self._since_ns = since_ns
        self._excused_ns = self._graces = 0

    def _excuse(self, now_ns: int) -> int:
        """Excuse the time by which the look that was asked for is overdue, and return it."""
        if self._look_ns is None or now_ns <= self._look_ns:
            return 0
        late_ns = now_ns - self._look_ns
        self._excused_ns += late_ns
        self._beat_excused_ns += late_ns
        self._look_ns = now_ns
        return late_ns

    def _learn(self, interval_ns: int) -> None:
        self._seen_ns += interval_ns
        self._block_max_ns = max(self._block_max_ns, interval_ns)
        self._block_ns += interval_ns
        if self._block_ns >= BLOCK_NS:
            self._blocks_ns.append(self._block_max_ns)
            self._block_max_ns = self._block_ns = 0
