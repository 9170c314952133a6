"""Driver of one engine's ranks in real time: it submits requests, sleeps until the next change and wakes waiting
readers.

It knows nothing of HTTP or of how KV caches are transferred: callbacks are told when to fetch. Tokens are counted,
never queued: a slow reader costs no memory and gets them in one piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

from loadgen.engine import model as engine_model
from loadgen.engine.blocks import NamesChange
from loadgen.engine.exposition import RequestMetrics
from loadgen.engine.model import EngineLoad, EngineOutput
from loadgen.engine.ranks import Ranks
from loadgen.engine.sequences import EngineRequest
from loadgen.engine.vocabulary import FinishReason, Rejection
from mesh.clock import Clock

_MILLISECOND_NS = 1_000_000
_SECOND_NS = 1_000_000_000


@dataclass(slots=True)
class TokenFeed:
    """Progress of one request. There is one reader."""

    request: EngineRequest
    submitted_ns: int
    rank: int = 0
    tokens: int = 0
    cached_tokens: int = 0
    reason: FinishReason | None = None
    """Finish reason; set once no more tokens will come."""
    has_failed: bool = False
    """True when the request ended because its KV cache could not be fetched."""
    last_token_ns: int = 0
    is_admitted: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def more_than(self, tokens: int) -> None:
        """Wait until there are more than `tokens` tokens, or until the end."""
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
    """Sole owner of an engine's ranks. `time_scale` is wall time over model time: at 0.25 everything runs four times as
    fast."""

    def __init__(self, ranks: Ranks, clock: Clock, *, time_scale: float) -> None:
        assert time_scale > 0
        self.metrics = [RequestMetrics(ranks.config.context_tokens_max) for _ in ranks.models]
        """Request metrics by rank."""
        self.on_fetching: Callable[[engine_model.Fetching], None] = _cannot_fetch
        """Called with a request whose KV cache is to be fetched; `deliver` or `fail` must follow."""
        self.on_gone: Callable[[str], None] = _ignore
        """Called with the id of a request that has finished or was aborted, and of one whose kept blocks were
        released."""
        self.on_cache: Callable[[int, list[NamesChange]], None] | None = None
        """Called with a rank and what has changed in its cache."""
        self._ranks = ranks
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
            await self._sleep_until(self._ranks.next_change_ns())

    def submit(self, request: EngineRequest, rank: int | None = None) -> TokenFeed | Rejection:
        """Submit a request at the given rank, or at the emptiest one."""
        now_ns = self._now_ns()
        rank = self.emptiest() if rank is None else rank
        rejection = self._ranks.submit(rank, request, now_ns)
        if rejection is not None:
            return rejection
        feed = self._feeds[request.request_id] = TokenFeed(request, now_ns, rank)
        self._wake.set()
        return feed

    def abort(self, request_id: str) -> None:
        """Abort a request and free what it holds. No effect on one that has ended or was never accepted."""
        if self._feeds.pop(request_id, None) is not None:
            self._ranks.abort(request_id, self._now_ns())
            self.on_gone(request_id)
            self._wake.set()

    def abort_all(self) -> None:
        """Abort every answer where it stands, as a stopping engine does."""
        for request_id, feed in list(self._feeds.items()):
            feed.end(FinishReason.ABORT)
            self.abort(request_id)

    def deliver(self, request_id: str, *, has_come: bool) -> None:
        """Report the end of a fetch: the KV cache has arrived or, where `has_come` is false, the prompt is computed
        here."""
        self._ranks.deliver(request_id, self._now_ns(), has_come=has_come)
        self._wake.set()

    def fail(self, request_id: str) -> None:
        """End a request whose KV cache could not be fetched."""
        feed = self._feeds.get(request_id)
        if feed is not None:
            feed.has_failed = True
            feed.end(FinishReason.ABORT)
            self.abort(request_id)

    def is_alive(self, request_id: str) -> bool:
        """True if a request was accepted and has not ended."""
        return request_id in self._feeds

    def keeps(self, request_id: str) -> bool:
        """True if a request's blocks are kept for a decode worker, as of the last advance."""
        return self._ranks.keeps(request_id)

    def emptiest(self) -> int:
        """Rank for a request that names none."""
        return self._ranks.emptiest()

    def renew(self, request_id: str, lease_ns: int) -> bool:
        now_ns = self._now_ns()
        is_kept = self._ranks.renew(request_id, now_ns + lease_ns, now_ns)
        self._wake.set()
        return is_kept

    def let_go(self, request_id: str) -> bool:
        has_let_go = self._ranks.let_go(request_id, self._now_ns())
        self.on_gone(request_id)
        self._wake.set()
        return has_let_go

    def load(self, rank: int = 0) -> EngineLoad:
        self._step()
        return self._ranks.models[rank].load()

    def loads(self) -> list[EngineLoad]:
        """Gauges and counters by rank."""
        self._step()
        return self._ranks.loads()

    def _now_ns(self) -> int:
        return int((self._clock.now_ns() - self._started_ns) / self._time_scale)

    async def _sleep_until(self, model_ns: int | None) -> None:
        """Sleep in whole milliseconds, rounded up: timers of event loops are no finer, and a shorter sleep would
        spin."""
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
        for output in self._ranks.advance(self._now_ns()):
            feed = self._feeds.get(output.request_id)
            if feed is not None:
                self._book(feed, output)
            elif isinstance(output, engine_model.Expired):
                self.on_gone(output.request_id)
        if self.on_cache is not None:
            for rank, model in enumerate(self._ranks.models):
                if changes := model.take_cache_changes():
                    self.on_cache(rank, changes)

    def _book(self, feed: TokenFeed, output: EngineOutput) -> None:
        match output:
            case engine_model.TokensGenerated():
                pause_s = self._seconds(output.at_ns - feed.last_token_ns) / output.count
                self.metrics[feed.rank].inter_token.observe(pause_s, output.count)
                feed.add(output.count, output.at_ns)
            case engine_model.FirstTokenMade():
                self.metrics[feed.rank].first_token.observe(self._seconds(output.at_ns - feed.submitted_ns))
                feed.add(1, output.at_ns)
            case engine_model.Admitted():
                self._book_admission(feed, output)
            case engine_model.Finished():
                self._book_end(feed, output)
            case engine_model.Fetching():
                self.on_fetching(output)
            case engine_model.Preempted() | engine_model.Expired():
                pass
            case _:
                assert_never(output)

    def _book_admission(self, feed: TokenFeed, output: engine_model.Admitted) -> None:
        if feed.is_admitted:
            return
        feed.is_admitted = True
        feed.cached_tokens = output.cached_tokens
        self.metrics[feed.rank].queue_time.observe(self._seconds(output.at_ns - feed.submitted_ns))

    def _book_end(self, feed: TokenFeed, output: engine_model.Finished) -> None:
        del self._feeds[output.request_id]
        seconds = self._seconds(output.at_ns - feed.submitted_ns)
        self.metrics[feed.rank].observe_finished(output.reason, seconds, feed.request.prompt_tokens, feed.tokens)
        feed.end(output.reason)
        self.on_gone(output.request_id)

    def _seconds(self, model_ns: int) -> float:
        return model_ns * self._time_scale / _SECOND_NS


def _cannot_fetch(fetching: engine_model.Fetching) -> None:
    raise AssertionError(f"{fetching.request_id} is remote, and no fetching is set up here")


def _ignore(_request_id: str) -> None:
    pass
