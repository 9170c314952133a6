"""Runs one engine model in real time: feeds it requests, wakes when it changes, hands tokens to those who wait.

It knows nothing of HTTP. Tokens are counted, never queued: a slow reader costs no memory and gets them in one piece.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import assert_never

from gateway.ground.clock import Clock
from loadgen.engine import model as engine_model
from loadgen.engine.exposition import RequestMetrics
from loadgen.engine.model import EngineLoad, EngineModel, EngineOutput
from loadgen.engine.sequences import EngineRequest
from loadgen.engine.vocabulary import FinishReason, Rejection

_MILLISECOND_NS = 1_000_000
_SECOND_NS = 1_000_000_000


@dataclass(slots=True)
class TokenFeed:
    """How far one request has come. There is one reader."""

    request: EngineRequest
    submitted_ns: int
    tokens: int = 0
    cached_tokens: int = 0
    reason: FinishReason | None = None
    """Set once no more tokens will come."""
    last_token_ns: int = 0
    is_admitted: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def more_than(self, tokens: int) -> None:
        """Wait until there are more tokens than these, or until the end."""
        while self.tokens <= tokens and self.reason is None:
            self._changed.clear()
            await self._changed.wait()

    def add(self, tokens: int, at_ns: int) -> None:
        self.tokens += tokens
        self.last_token_ns = at_ns
        self._changed.set()

    def end(self, reason: FinishReason) -> None:
        self.reason = reason
        self._changed.set()


class EngineDriver:
    """The one owner of a model. `time_scale` is wall time over model time: at 0.25 the engine is four times as fast."""

    def __init__(self, model: EngineModel, clock: Clock, *, time_scale: float) -> None:
        assert time_scale > 0
        self.metrics = RequestMetrics(model.config.context_tokens_max)
        self._model = model
        self._clock = clock
        self._time_scale = time_scale
        self._started_ns = clock.now_ns()
        self._feeds: dict[str, TokenFeed] = {}
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Step the model whenever something is due, until cancelled."""
        while True:
            self._wake.clear()
            self._step()
            await self._sleep_until(self._model.next_change_ns())

    def submit(self, request: EngineRequest) -> TokenFeed | Rejection:
        now_ns = self._now_ns()
        rejection = self._model.submit(request, now_ns)
        if rejection is not None:
            return rejection
        feed = self._feeds[request.request_id] = TokenFeed(request, now_ns)
        self._wake.set()
        return feed

    def abort(self, request_id: str) -> None:
        """Stop a request and free what it holds. One that has ended, or was never taken, is nothing to stop."""
        if self._feeds.pop(request_id, None) is not None:
            self._model.abort(request_id, self._now_ns())
            self._wake.set()

    def abort_all(self) -> None:
        """End every answer where it stands, as a stopping engine does."""
        for request_id, feed in list(self._feeds.items()):
            feed.end(FinishReason.ABORT)
            self.abort(request_id)

    def load(self) -> EngineLoad:
        self._step()
        return self._model.load()

    def _now_ns(self) -> int:
        return int((self._clock.now_ns() - self._started_ns) / self._time_scale)

    async def _sleep_until(self, model_ns: int | None) -> None:
        """Whole milliseconds, rounded up: timers of event loops are no finer, and a shorter one would spin."""
        if model_ns is None:
            await self._wake.wait()
            return
        wait_ns = (model_ns - self._now_ns()) * self._time_scale
        milliseconds = max(0, -int(-wait_ns // _MILLISECOND_NS))
        timer = asyncio.get_running_loop().call_later(milliseconds / 1_000, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    def _step(self) -> None:
        for output in self._model.advance(self._now_ns()):
            feed = self._feeds.get(output.request_id)
            if feed is not None:
                self._book(feed, output)

    def _book(self, feed: TokenFeed, output: EngineOutput) -> None:
        match output:
            case engine_model.TokensGenerated():
                pause_s = self._seconds(output.at_ns - feed.last_token_ns) / output.count
                self.metrics.inter_token.observe(pause_s, output.count)
                feed.add(output.count, output.at_ns)
            case engine_model.FirstToken():
                self.metrics.first_token.observe(self._seconds(output.at_ns - feed.submitted_ns))
                feed.add(1, output.at_ns)
            case engine_model.Admitted():
                self._book_admission(feed, output)
            case engine_model.Finished():
                self._book_end(feed, output)
            case engine_model.Preempted():
                pass
            case _:
                assert_never(output)

    def _book_admission(self, feed: TokenFeed, output: engine_model.Admitted) -> None:
        if feed.is_admitted:
            return
        feed.is_admitted = True
        feed.cached_tokens = output.cached_tokens
        self.metrics.queue_time.observe(self._seconds(output.at_ns - feed.submitted_ns))

    def _book_end(self, feed: TokenFeed, output: engine_model.Finished) -> None:
        del self._feeds[output.request_id]
        seconds = self._seconds(output.at_ns - feed.submitted_ns)
        self.metrics.observe_finished(output.reason, seconds, feed.request.prompt_tokens, feed.tokens)
        feed.end(output.reason)

    def _seconds(self, model_ns: int) -> float:
        return model_ns * self._time_scale / _SECOND_NS
