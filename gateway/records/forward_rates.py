"""Rates of forwards per minute to and from each peer, from counters that exist anyway. Requests pay nothing for them:
the counters are sampled every few seconds, and the samples of the last minute are kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from gateway.core.vocabulary import Word

_WINDOW_NS = 60_000_000_000
_LOOK_EVERY_NS = 5_000_000_000
_LOOKS_MAX = 64


class ForwardDirection(Word):
    """Direction of a forward, as seen from this gateway."""

    OUT = "out"
    IN = "in"


Counts = Mapping[tuple[str, ForwardDirection], int]
"""Forwards by peer and direction. Former peers share one label, as in the counters."""


class ForwardRates:
    """Samples of the counters over the last minute."""

    def __init__(self, count: Callable[[], Counts], now_ns: int) -> None:
        self._count = count
        self._looks: deque[tuple[int, Counts]] = deque([(now_ns, count())], maxlen=_LOOKS_MAX)
        """Samples, oldest first. The first is the newest that is at least a window old, where there is one."""

    def look(self, now_ns: int) -> None:
        """Take a sample if the last one is old enough; cheap to call often."""
        if now_ns - self._looks[-1][0] < _LOOK_EVERY_NS:
            return
        self._looks.append((now_ns, self._count()))
        while len(self._looks) > 1 and self._looks[1][0] <= now_ns - _WINDOW_NS:
            self._looks.popleft()

    def per_minute(self, now_ns: int) -> dict[tuple[str, ForwardDirection], float]:
        """Forwards per minute, over the last minute or the time since the first sample. Pairs without any are
        left out."""
        began_ns, before = self._looks[0]
        over_ns = max(now_ns - began_ns, 1_000_000_000)
        more = ((key, count - before.get(key, 0)) for key, count in self._count().items())
        return {key: count * _WINDOW_NS / over_ns for key, count in more if count > 0}
