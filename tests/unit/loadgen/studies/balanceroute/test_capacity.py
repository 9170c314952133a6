"""Capacity of workers: by slots or by KV tokens, with long answers counted for longer."""

from __future__ import annotations

import pytest

from loadgen.studies.balanceroute.capacity import held_tokens, kv_tokens_of, requests_per_ns, whole_tokens
from loadgen.studies.balanceroute.loads import PrefilledRequest

ASKS = [PrefilledRequest(100, 10), PrefilledRequest(200, 30)]
WHOLE = (10 * 110 + 30 * 230) / 40


def test_long_answers_count_for_longer() -> None:
    assert whole_tokens(ASKS) == pytest.approx(WHOLE)
    assert held_tokens(ASKS) == pytest.approx((10 * 105 + 30 * 215) / 40)


def test_a_limited_cache_holds_the_longest_request_at_least() -> None:
    assert kv_tokens_of(ASKS, 16, 0.0) == 0
    assert kv_tokens_of(ASKS, 16, 0.75) == 12 * WHOLE
    assert kv_tokens_of(ASKS, 1, 0.75) == 230


def test_a_cache_limits_what_a_batch_carries() -> None:
    def carried(kv_tokens: int) -> float:
        return requests_per_ns(ASKS, 2, 8, kv_tokens, (1_000, 0))

    assert carried(0) == pytest.approx(2 * 8 / (1_000 * 20))
    assert carried(round(4 * WHOLE)) == pytest.approx(carried(0) / 2)
    assert carried(round(100 * WHOLE)) == carried(0)
