"""How many forwards a minute go to each peer and come from it, from counters that are there anyway. It costs requests
nothing: somebody looks at the counters now and then, and the last minute of looks is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from gateway.core.vocabulary import Word

_WINDOW_NS = 60_000_000_000
_LOOK_EVERY_NS = 5_000_000_000
_LOOKS_MAX = 64


class Way(Word):
    OUT = "out"
    IN = "in"


Counts = Mapping[tuple[str, Way], int]
"""By peer, and whether there or from there. Peers that are none any more are one, as the counters have it."""


class ForwardRates:
    def __init__(self, count: Callable[[], Counts], now_ns: int) -> None:
        self._count = count
        self._looks: deque[tuple[int, Counts]] = deque([(now_ns, count())], maxlen=_LOOKS_MAX)
        """The oldest is the last one that is a whole window ago, where there is such a one."""

    def look(self, now_ns: int) -> None:
        """May be called often: it looks every few seconds."""
        if now_ns - self._looks[-1][0] < _LOOK_EVERY_NS:
            return
        self._looks.append((now_ns, self._count()))
        while len(self._looks) > 1 and self._looks[1][0] <= now_ns - _WINDOW_NS:
            self._looks.popleft()

    def per_minute(self, now_ns: int) -> dict[tuple[str, Way], float]:
        """Over the last minute, or for as long as there is anything to look back on. Who had none is left out."""
        began_ns, before = self._looks[0]
        over_ns = max(now_ns - began_ns, 1_000_000_000)
        more = ((key, count - before.get(key, 0)) for key, count in self._count().items())
        return {key: count * _WINDOW_NS / over_ns for key, count in more if count > 0}
