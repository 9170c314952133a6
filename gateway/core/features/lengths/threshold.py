"""Self-tuning threshold of a short pool: it falls when that pool preempts, rejects, cuts answers short or keeps
requests waiting while the long pool does not, and rises again otherwise (token-budget paper, §7).

Its input is which requests ended and when; its output is a number of tokens within bounds. It moves at most once an
interval, only on enough evidence, and without a reason only towards the configured value. It never sees a request.
"""

from __future__ import annotations

from typing import Final

from gateway.core.features.lengths.config import ThresholdConfig
from gateway.core.value import value
from gateway.core.vocabulary import Word

_WINDOWS_MAX: Final = 30
"""Intervals over which evidence is gathered at most; older evidence is discarded."""
_BELOW_CEILING: Final = 0.95
"""Share of the ceiling (where it last had to come down) up to which it rises again before the ceiling expires."""
_DOUBT_DOUBLINGS_MAX: Final = 5


class Trouble(Word):
    """Problem that a request met in the short pool."""

    PREEMPTED = "preempted"
    """The engine took KV blocks from it for other requests."""
    REJECTED = "rejected"
    """The engine, or the pool's queue, refused it."""
    MISROUTED = "misrouted"
    """The request was too long for the pool: refused for its length, or its answer was cut there."""


class Move(Word):
    """Reason of a change of the threshold."""

    TROUBLE = "trouble"
    """Down: too many requests met problems in the short pool."""
    SHORT_LATE = "short_late"
    """Down: requests wait too long in the short pool, and less in the long one."""
    LONG_LATE = "long_late"
    """Up: requests wait too long in the long pool, and not more in the short one."""
    HOME = "home"
    """Back towards the configured value, with no evidence against it."""


@value
class Moved:
    """One change of a threshold, for the record."""

    from_tokens: int
    to_tokens: int
    move: Move


class _Counts:
    """Counts since the last adjustment."""

    __slots__ = ("late", "requests", "troubled")

    def __init__(self) -> None:
        self.requests = 0
        self.troubled = 0
        self.late = 0

    @property
    def trouble_share(self) -> float:
        return self.troubled / self.requests if self.requests else 0.0

    @property
    def late_share(self) -> float:
        return self.late / self.requests if self.requests else 0.0


class Threshold:
    """Threshold of one model's short pool."""

    def __init__(self, config: ThresholdConfig, home_tokens: int, limit_tokens: int, now_ns: int) -> None:
        """`home_tokens`: the configured value. `limit_tokens`: the pool's context window, the upper bound."""
        assert 0 < home_tokens <= limit_tokens, "a threshold is within its pool's window"
        self._config = config
        self._home = home_tokens
        self._limit = limit_tokens
        self.tokens = home_tokens
        self._ceiling: int | None = None
        """Value from which it last had to come down; None: never."""
        self._doubts = 0
        """Consecutive times that it had to come down after rising beyond an earlier ceiling."""
        self._ceiling_until_ns = 0
        self._looked_ns = now_ns
        self._short = _Counts()
        self._long = _Counts()
        self.moves: dict[Move, int] = dict.fromkeys(Move, 0)

    @property
    def home_tokens(self) -> int:
        return self._home

    @property
    def limit_tokens(self) -> int:
        return self._limit

    @property
    def least_tokens(self) -> int:
        return min(self._config.tokens_min, self._home)

    def configure(self, config: ThresholdConfig, home_tokens: int, limit_tokens: int) -> None:
        """Apply new bounds; the current value stays, moved within them."""
        assert 0 < home_tokens <= limit_tokens, "a threshold is within its pool's window"
        self._config, self._home, self._limit = config, home_tokens, limit_tokens
        self.tokens = min(max(self.tokens, self.least_tokens), limit_tokens)

    def ended(self, *, in_short: bool, trouble: Trouble | None = None, first_token_after_ns: int | None = None) -> None:
        """Count one request, in the short pool or a longer one. `first_token_after_ns`: time from arrival to first
        token; None: not known. Problems in the long pool are counted but not used."""
        counts = self._short if in_short else self._long
        counts.requests += 1
        if trouble is not None:
            counts.troubled += 1
        if first_token_after_ns is not None and first_token_after_ns > self._config.late_ns:
            counts.late += 1

    def troubled(self, count: int) -> None:
        """Count `count` problems of requests in the short pool; the requests themselves are counted by `ended`."""
        self._short.troubled += count

    def adjust(self, now_ns: int) -> Moved | None:
        """Move at most one step, at most once an interval. Called repeatedly, such as whenever a request has ended."""
        since_ns, config = now_ns - self._looked_ns, self._config
        if since_ns < config.interval_ns:
            return None
        is_enough = self._short.requests + self._long.requests >= config.requests_min
        move = self._reason() if is_enough else None
        if is_enough or since_ns > _WINDOWS_MAX * config.interval_ns:
            self._short, self._long, self._looked_ns = _Counts(), _Counts(), now_ns
        tokens = self._target(move, now_ns)
        if move is None or tokens == self.tokens:
            return None
        moved = Moved(self.tokens, tokens, move)
        self.moves[move] += 1
        self.tokens = tokens
        return moved

    # Internals

    def _reason(self) -> Move | None:
        config, short, long = self._config, self._short, self._long
        if short.troubled > 1 and short.trouble_share > config.trouble_share:
            return Move.TROUBLE
        if short.late > 1 and short.late_share > config.late_share and short.late_share > long.late_share:
            return Move.SHORT_LATE
        if long.late > 1 and long.late_share > config.late_share:
            return Move.LONG_LATE
        return Move.HOME if self.tokens != self._home else None

    def _target(self, move: Move | None, now_ns: int) -> int:
        """Value that the move leads to, within all bounds."""
        if move is None:
            return self.tokens
        if move is Move.TROUBLE or move is Move.SHORT_LATE:
            self._came_down(now_ns)
            return max(self.least_tokens, int(self.tokens * self._config.tighten))
        raised = max(self.tokens + 1, int(self.tokens * self._config.relax))
        if move is Move.HOME:
            if self.tokens > self._home:
                return max(self._home, int(self.tokens / self._config.relax))
            raised = min(raised, self._home)
        return min(raised, self._limit, self._allowed(raised, now_ns))

    def _came_down(self, now_ns: int) -> None:
        """Set the ceiling. Its duration doubles each time that the threshold has come down again after rising beyond a
        ceiling."""
        tried_beyond = self._ceiling is not None and self.tokens >= int(self._ceiling * _BELOW_CEILING)
        self._doubts = min(self._doubts + 1, _DOUBT_DOUBLINGS_MAX) if tried_beyond else 0
        self._ceiling = self.tokens
        self._ceiling_until_ns = now_ns + (self._config.patience_ns << self._doubts)

    def _allowed(self, raised: int, now_ns: int) -> int:
        if self._ceiling is None or now_ns >= self._ceiling_until_ns:
            return raised
        return max(self.tokens, int(self._ceiling * _BELOW_CEILING))
