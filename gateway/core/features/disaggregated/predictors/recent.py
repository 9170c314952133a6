"""Statistics of the most recent requests that left, from a window of their lengths.

The same object makes the features in service and, fed with a history in its order, the features for fitting.
"""

from __future__ import annotations

import math
from collections import deque

from gateway.core.value import value

WINDOW = 256
"""Requests whose lengths are kept."""
_FAST = 1 / 16
_SLOW = 1 / 256
"""Weights of the newest length in the moving averages, once there are enough."""


@value
class RecentLengths:
    """Statistics at one moment, in tokens; zeros before any request has left."""

    output_fast: float = 0.0
    """Moving average of output lengths over tens of requests."""
    output_slow: float = 0.0
    """Moving average of output lengths over hundreds of requests."""
    output_mean: float = 0.0
    """Mean over the window."""
    output_deviation: float = 0.0
    prompt_mean: float = 0.0
    prompt_deviation: float = 0.0


NOTHING_RECENT = RecentLengths()


class RecentRequests:
    """Statistics of recent requests. Sums are integers, so they do not drift; a moving average is a plain mean at
    first."""

    def __init__(self) -> None:
        self._window: deque[tuple[int, int]] = deque(maxlen=WINDOW)
        self._prompt_sum = 0
        self._prompt_squares = 0
        self._output_sum = 0
        self._output_squares = 0
        self._fast = 0.0
        self._slow = 0.0
        self._seen = 0
        self._now: RecentLengths | None = NOTHING_RECENT

    def left(self, prompt_tokens: int, output_tokens: int) -> None:
        """Record a request that left its decode worker after `output_tokens`."""
        if len(self._window) == WINDOW:
            oldest_prompt, oldest_output = self._window[0]
            self._count(oldest_prompt, oldest_output, -1)
        self._window.append((prompt_tokens, output_tokens))
        self._count(prompt_tokens, output_tokens, 1)
        self._seen += 1
        self._fast += max(_FAST, 1 / self._seen) * (output_tokens - self._fast)
        self._slow += max(_SLOW, 1 / self._seen) * (output_tokens - self._slow)
        self._now = None

    def lengths(self) -> RecentLengths:
        """Current statistics; computed once between two calls of `left`."""
        if self._now is None:
            count = len(self._window)
            self._now = RecentLengths(
                self._fast,
                self._slow,
                self._output_sum / count,
                _deviation(self._output_sum, self._output_squares, count),
                self._prompt_sum / count,
                _deviation(self._prompt_sum, self._prompt_squares, count),
            )
        return self._now

    def _count(self, prompt_tokens: int, output_tokens: int, times: int) -> None:
        self._prompt_sum += times * prompt_tokens
        self._prompt_squares += times * prompt_tokens * prompt_tokens
        self._output_sum += times * output_tokens
        self._output_squares += times * output_tokens * output_tokens


def _deviation(total: int, squares: int, count: int) -> float:
    return math.sqrt(count * squares - total * total) / count
