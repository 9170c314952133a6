"""Progress of requests in decode, in tokens, estimated from a count of stream events, which is free.

One event may hold several tokens. The average is learnt for each engine from answers with reported usage. Also
remembered: engines whose streams cannot be assembled into an answer in one piece.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.kernel.events import LegProgress
from gateway.core.vocabulary import PoolName, RequestId, Target

_FORGET = 0.98
"""Weight of the old average when one more answer comes."""
_RATIO_MAX = 64.0
"""Bound of the tokens per event that are believed of any engine."""
_TARGETS_MAX = 4096
_LEFT_WHOLE_NS = 600 * 10**9
"""Time after which assembling is tried again: the engine may have been replaced, or one request may have been odd."""

Count = Callable[[], int]
"""Returns the number of data events with content so far."""


class ProgressBoard:
    """Decode progress of one gateway's requests."""

    def __init__(self) -> None:
        self._decoding: dict[RequestId, tuple[int, PoolName | None, Target, Count]] = {}
        self._tokens_an_event: dict[Target, float] = {}
        self._left_whole_until_ns: dict[tuple[Target, str], int] = {}

    def begins(self, request_id: RequestId, attempt: int, pool: PoolName | None, target: Target, events: Count) -> None:
        self._decoding[request_id] = (attempt, pool, target, events)

    def ends(self, request_id: RequestId, attempt: int) -> None:
        """Forget a request's progress, unless another attempt has begun since."""
        known = self._decoding.get(request_id)
        if known is not None and known[0] == attempt:
            del self._decoding[request_id]

    def learn(self, target: Target, events: int, output_tokens: int) -> None:
        """Learn the tokens per event from a finished answer."""
        if events < 1 or output_tokens < 1:
            return
        ratio = min(output_tokens / events, _RATIO_MAX)
        if len(self._tokens_an_event) >= _TARGETS_MAX:
            self._tokens_an_event.clear()
        known = self._tokens_an_event.get(target, ratio)
        self._tokens_an_event[target] = _FORGET * known + (1 - _FORGET) * ratio

    def leave_whole(self, target: Target, path: str, now_ns: int) -> None:
        """Note that this engine's streams of this call cannot be assembled."""
        if len(self._left_whole_until_ns) >= _TARGETS_MAX:
            self._left_whole_until_ns.clear()
        self._left_whole_until_ns[target, path] = now_ns + _LEFT_WHOLE_NS

    def is_left_whole(self, target: Target, path: str, now_ns: int) -> bool:
        return now_ns < self._left_whole_until_ns.get((target, path), now_ns)

    def sample(self, pool: PoolName) -> tuple[LegProgress, ...]:
        """Progress of the requests that this pool decodes."""
        return tuple(
            LegProgress(request_id, attempt, round(events() * self._tokens_an_event.get(target, 1.0)))
            for request_id, (attempt, theirs, target, events) in self._decoding.items()
            if theirs == pool
        )
