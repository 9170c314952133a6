"""How far the requests that are being decoded have come, in tokens: counted by events, which cost nothing to count.

An event may hold several tokens. How many it holds on average is learnt from answers that told their usage, engine by
engine. So is whose streams cannot be put together to an answer in one piece.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.events import DecodeProgress
from gateway.core.vocabulary import PoolName, RequestId, Target

_FORGET = 0.98
"""What an answer still counts after the next one."""
_RATIO_MAX = 64.0
"""No engine is believed that claims to put more into one event."""
_TARGETS_MAX = 4096
_LEFT_WHOLE_NS = 600 * 10**9
"""Then it is tried again: an engine may have been replaced, or have met one odd request."""

Count = Callable[[], int]
"""Data events with content, so far."""


class ProgressBoard:
    """One gateway's."""

    def __init__(self) -> None:
        self._decoding: dict[RequestId, tuple[int, PoolName | None, Target, Count]] = {}
        self._tokens_an_event: dict[Target, float] = {}
        self._left_whole_until_ns: dict[tuple[Target, str], int] = {}

    def begins(self, request_id: RequestId, attempt: int, pool: PoolName | None, target: Target, events: Count) -> None:
        self._decoding[request_id] = (attempt, pool, target, events)

    def ends(self, request_id: RequestId, attempt: int) -> None:
        """Another attempt may have begun meanwhile."""
        known = self._decoding.get(request_id)
        if known is not None and known[0] == attempt:
            del self._decoding[request_id]

    def learn(self, target: Target, events: int, output_tokens: int) -> None:
        """An answer of so many events turned out to be so many tokens."""
        if events < 1 or output_tokens < 1:
            return
        ratio = min(output_tokens / events, _RATIO_MAX)
        if len(self._tokens_an_event) >= _TARGETS_MAX:
            self._tokens_an_event.clear()
        known = self._tokens_an_event.get(target, ratio)
        self._tokens_an_event[target] = _FORGET * known + (1 - _FORGET) * ratio

    def leave_whole(self, target: Target, path: str, now_ns: int) -> None:
        """This engine's streams of this call could not be put together."""
        if len(self._left_whole_until_ns) >= _TARGETS_MAX:
            self._left_whole_until_ns.clear()
        self._left_whole_until_ns[target, path] = now_ns + _LEFT_WHOLE_NS

    def is_left_whole(self, target: Target, path: str, now_ns: int) -> bool:
        return now_ns < self._left_whole_until_ns.get((target, path), now_ns)

    def sample(self, pool: PoolName) -> tuple[DecodeProgress, ...]:
        """Of the requests that this pool decodes."""
        return tuple(
            DecodeProgress(request_id, attempt, round(events() * self._tokens_an_event.get(target, 1.0)))
            for request_id, (attempt, theirs, target, events) in self._decoding.items()
            if theirs == pool
        )
