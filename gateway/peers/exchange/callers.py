"""Who has streams to us: how many, how often they broke the rules, and when they may begin another.

It keeps nothing of a caller that has no stream and is in no disgrace.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gateway.ground.clock import Clock
from gateway.peers.exchange.called import CalledStream
from gateway.peers.exchange.patience import Patience

_SECOND_NS = 1_000_000_000
STREAMS_EACH_MAX = 8
"""Of one caller: the one that takes forwards, and older ones with forwards that still run."""
REST_NS = 5 * _SECOND_NS
"""How long a caller whose stream was ended for its doing may begin no other."""
_DISGRACED_MAX = 1024


@dataclass(slots=True)
class _Caller:
    patience: Patience = field(default_factory=Patience)
    streams: list[CalledStream] = field(default_factory=list)


class Callers:
    """One for all streams."""

    def __init__(self, clock: Clock, streams_max: int) -> None:
        self._clock = clock
        self._streams_max = streams_max
        self._callers: dict[str, _Caller] = {}
        self._rests_until_ns: dict[str, int] = {}
        self._is_closed = False

    @property
    def streams(self) -> int:
        return sum(len(each.streams) for each in self._callers.values())

    def why_not(self, caller: str) -> str:
        """Why it may begin no stream now; empty when it may."""
        if self._clock.now_ns() < self._rests_until_ns.get(caller, 0):
            return "your last stream broke the rules; wait a little"
        known = self._callers.get(caller)
        if (known is not None and len(known.streams) >= STREAMS_EACH_MAX) or self.streams >= self._streams_max:
            return "too many streams"
        return ""

    def patience_with(self, caller: str) -> Patience:
        """With whoever begins a stream now."""
        self._forget_whoever_left()
        return self._callers.setdefault(caller, _Caller()).patience

    @contextmanager
    def holding(self, caller: str, stream: CalledStream) -> Iterator[None]:
        """It has this stream meanwhile."""
        known = self._callers.setdefault(caller, _Caller())
        known.streams.append(stream)
        if self._is_closed:
            stream.close()
        try:
            yield
        finally:
            known.streams.remove(stream)

    def disgrace(self, caller: str) -> None:
        """Its stream was ended for its doing."""
        now_ns = self._clock.now_ns()
        resting = {each: until_ns for each, until_ns in self._rests_until_ns.items() if until_ns > now_ns}
        if len(resting) < _DISGRACED_MAX:
            resting[caller] = now_ns + REST_NS
        self._rests_until_ns = resting

    def _forget_whoever_left(self) -> None:
        """But not what was wasted just now: else a caller would only have to come again."""
        now_ns = self._clock.now_ns()
        for name, each in list(self._callers.items()):
            if not each.streams and each.patience.is_fresh(now_ns):
                del self._callers[name]

    def close(self) -> None:
        """No new forwards on any stream; each ends with its last one."""
        self._is_closed = True
        for caller in self._callers.values():
            for stream in caller.streams:
                stream.close()
