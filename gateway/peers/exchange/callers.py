"""Counts each caller's streams and broken rules, and decides when a caller may begin another stream.

A caller without a stream and without a recent fault leaves no state here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct, field

from gateway.peers.exchange.serving_stream import ServingStream
from gateway.peers.exchange.wasted_frames import WastedFrameLimit
from mesh.clock import Clock

_SECOND_NS = 1_000_000_000
STREAMS_EACH_MAX = 8
"""Streams of one caller: the one that takes forwards, and older ones whose forwards still run."""
REST_NS = 5 * _SECOND_NS
"""Time for which a caller may begin no stream after one of its streams broke the rules."""
_DISGRACED_MAX = 1024


class _Caller(Struct):
    patience: WastedFrameLimit = field(default_factory=WastedFrameLimit)
    streams: list[ServingStream] = field(default_factory=list)


class Callers:
    """Callers of all streams."""

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
        """Reason why the caller may not begin a stream at this moment; empty if it may."""
        if self._clock.now_ns() < self._rests_until_ns.get(caller, 0):
            return "your last stream broke the rules; wait a little"
        known = self._callers.get(caller)
        if (known is not None and len(known.streams) >= STREAMS_EACH_MAX) or self.streams >= self._streams_max:
            return "too many streams"
        return ""

    def patience_with(self, caller: str) -> WastedFrameLimit:
        """Patience that all streams of this caller share."""
        self._forget_departed()
        return self._callers.setdefault(caller, _Caller()).patience

    @contextmanager
    def holding(self, caller: str, stream: ServingStream) -> Iterator[None]:
        """Count the stream as the caller's inside the context."""
        known = self._callers.setdefault(caller, _Caller())
        known.streams.append(stream)
        if self._is_closed:
            stream.close()
        try:
            yield
        finally:
            known.streams.remove(stream)

    def disgrace(self, caller: str) -> None:
        """Keep the caller from beginning a stream for a while, after one of its streams broke the rules."""
        now_ns = self._clock.now_ns()
        resting = {each: until_ns for each, until_ns in self._rests_until_ns.items() if until_ns > now_ns}
        if len(resting) < _DISGRACED_MAX:
            resting[caller] = now_ns + REST_NS
        self._rests_until_ns = resting

    def _forget_departed(self) -> None:
        """Forget callers without streams, except those that wasted frames in the last second: otherwise reconnecting
        would reset their count."""
        now_ns = self._clock.now_ns()
        for name, each in list(self._callers.items()):
            if not each.streams and each.patience.is_fresh(now_ns):
                del self._callers[name]

    def close(self) -> None:
        """Accept no new forwards on any stream; each stream ends with its last forward."""
        self._is_closed = True
        for caller in self._callers.values():
            for stream in caller.streams:
                stream.close()
