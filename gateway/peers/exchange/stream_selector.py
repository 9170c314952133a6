"""Chooses the stream that a forward to a peer goes out on: the open one, or a new one.

Each connection has one carrier. A stream that broke through the peer's fault is replaced only after a pause; a lost
connection is left to gRPC to reconnect, as for every other call.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from gateway.config.sections import PeeringConfig
from gateway.core.vocabulary import LegResult
from gateway.peers.exchange.origin_stream import OriginForward, OriginStream
from gateway.peers.forward_messages import MessageReceiver
from gateway.request.legs import LegFailure
from mesh.clock import Clock
from mesh.supervisor import Backoff

_SECOND_NS = 1_000_000_000

Start = Callable[[Coroutine[None, None, None]], object]


class StreamSelector:
    """Carrier of one connection to one peer."""

    def __init__(
        self,
        begin: Callable[[], Any],
        peering: PeeringConfig,
        clock: Clock,
        start: Start,
        *,
        is_shortage: Callable[[BaseException], bool],
        on_ignored: Callable[[], None],
        on_broken: Callable[[str], None],
        on_turn: Callable[[], None] = lambda: None,
    ) -> None:
        """`begin` makes the call, `start` runs a coroutine to its end, `is_shortage` tells whether an error is a
        shortage of this gateway's own. `on_broken` is called with the reason when a stream ended that should not have,
        `on_turn` after each message of the peer was handed on."""
        self._on_turn = on_turn
        self._begin = begin
        self._peering = peering
        self._clock = clock
        self._start = start
        self._is_shortage = is_shortage
        self._on_ignored = on_ignored
        self._on_broken = on_broken
        self._backoff = Backoff(peering.reconnect_min_ns, peering.reconnect_max_ns)
        self._rng = random.Random()
        self._stream: OriginStream | None = None
        self._failures = 0
        self._failed: LegFailure | None = None
        self._rests_until_ns = 0

    def open(self, request: bytes, taker: MessageReceiver) -> OriginForward:
        """Begin a forward, whose words go to `taker`. Raises LegFailure during the pause after a fault."""
        stream = self._stream
        if stream is None or stream.is_retiring:
            stream = self._next(self._clock.now_ns())
        return stream.open(request, taker)

    def retire(self) -> None:
        """Accept no new forwards on the open stream, which ends with its last: they go out on another one."""
        if self._stream is not None:
            self._stream.retire()

    def _next(self, now_ns: int) -> OriginStream:
        if now_ns < self._rests_until_ns and self._failed is not None:
            raise replace(self._failed, detail=f"left alone for a while, since: {self._failed.detail}")
        stream = OriginStream(
            self._begin(),
            self._clock,
            window_bytes=self._peering.forward_window_bytes,
            gap_ns=self._peering.batch_gap_ns,
            on_ignored=self._on_ignored,
            is_shortage=self._is_shortage,
            on_turn=self._on_turn,
        )
        self._stream = stream
        self._start(self._run(stream))
        return stream

    async def _run(self, stream: OriginStream) -> None:
        try:
            await stream.run()
        finally:
            self._is_over(stream)

    def _is_over(self, stream: OriginStream) -> None:
        why, now_ns = stream.broken, self._clock.now_ns()
        if self._stream is stream:
            self._stream = None
        if why is not None and why.result is not LegResult.INTERNAL and not stream.has_closed:
            self._on_broken(why.detail)
            if not stream.is_connection_lost:
                before = 0 if stream.has_served else self._failures
                self._failures = self._backoff.failures_in_a_row(before, now_ns - stream.opened_ns)
                self._failed = why
                if self._failures > 1:  # one broken stream causes no pause: it may have any cause
                    pause_s = self._backoff.pause_s(self._failures, self._rng)
                    self._rests_until_ns = now_ns + round(pause_s * _SECOND_NS)
