"""Computes what a group of decode workers can hold and carry, from the requests that it is asked. Arithmetic only."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from loadgen.studies.balanceroute.loads import PrefilledRequest


def kv_tokens_of(asks: Sequence[PrefilledRequest], batch: int, room_share: float) -> int:
    """Capacity of a worker's KV cache: a share of a batch of mean requests with their whole answers, but enough for the
    longest one; 0 for a share of 0: unlimited."""
    if not room_share:
        return 0
    longest = max(each.prompt_tokens + each.output_tokens for each in asks)
    return max(longest, round(room_share * batch * whole_tokens(asks)))


def whole_tokens(asks: Sequence[PrefilledRequest]) -> float:
    """Tokens of a running request with its whole answer, in the mean over time: long answers run for longer."""
    return _over_time([each.prompt_tokens + each.output_tokens for each in asks], asks)


def held_tokens(asks: Sequence[PrefilledRequest]) -> float:
    """KV tokens of a running request, in the mean over time: half of its answer exists."""
    return _over_time([each.prompt_tokens + each.output_tokens / 2 for each in asks], asks)


def _over_time(tokens: Sequence[float], asks: Sequence[PrefilledRequest]) -> float:
    steps = [each.output_tokens for each in asks]
    return fmean(tokens, weights=steps)


def requests_per_ns(
    asks: Sequence[PrefilledRequest], workers: int, batch: int, kv_tokens: int, step_ns: tuple[int, int]
) -> float:
    """Requests per nanosecond of workers that are always full, in slots or in KV tokens, and equally loaded. `step_ns`:
    fixed part of a step, and its part per KV token. `kv_tokens` 0: unlimited."""
    running = min(batch, kv_tokens / whole_tokens(asks)) if kv_tokens else batch
    fixed_ns, token_ns = step_ns
    lasts_ns = fixed_ns + token_ns * running * held_tokens(asks)
    return workers * running / (lasts_ns * fmean(each.output_tokens for each in asks))
