from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.core.features.disaggregated.predictors.arrays import TOKENS_MAX
from gateway.core.features.disaggregated.predictors.estimator import KEY_MAX, UNKNOWN_PROMPT
from mesh.control import codec
from mesh.control.pool_history import LENGTH_MAX, PROMPT_KEY_MAX, ROWS_MAX, history_fault, packed
from tests.support.histories import KEY_ID, history_of

GOOD = history_of(5, 6, 7, keys=(1, 2, 3), added=9)


def test_a_history_says_what_was_recorded_and_has_no_faults() -> None:
    assert history_fault(GOOD) == ""
    assert len(GOOD) == 3
    assert GOOD.rows(KEY_ID) == [(1, 10, 5, 6), (2, 10, 6, 7), (3, 10, 7, 8)]


def test_under_another_secret_no_prompt_is_known() -> None:
    assert [row[0] for row in GOOD.rows("bb")] == [UNKNOWN_PROMPT] * 3
    assert [row[1:] for row in GOOD.rows("bb")] == [row[1:] for row in GOOD.rows(KEY_ID)]


@pytest.mark.parametrize(
    ("spoilt", "fault"),
    [
        (
            {"prompt_keys": packed([1, 2, PROMPT_KEY_MAX + 1], "prompt_keys")},
            "prompt_keys: 9223372036854775808 is",
        ),
        ({"prompt_keys": b""}, "prompt_keys: it has 0 bytes, and 3 requests take 24"),
        (
            {"prompt_tokens": packed([1, LENGTH_MAX + 1, 3], "prompt_tokens")},
            "prompt_tokens: 16777217 is above",
        ),
        ({"output_tokens": packed([LENGTH_MAX + 1, 1, 1], "output_tokens")}, "output_tokens: 16777217 is above"),
        ({"output_tokens": b"\0" * 11}, "output_tokens: it has 11 bytes, and 3 requests take 12"),
        ({"after": packed([10, 0, 0], "after")}, "after: 10 is above 9"),
        ({"after": packed([0] * 10, "after")}, "after: its 10 requests are more than 9"),
        (
            {"added": 5_000, "after": packed([0] * (ROWS_MAX + 1), "after")},
            "after: its 4001 requests are more",
        ),
        ({"added": 1 << 63}, "first_away: 9 is not between 0 and `added`"),
        ({"first_away": 10}, "first_away: 10 is not between 0 and `added`, 9"),
        ({"key_id": ""}, "key_id"),
        ({"key_id": "a" * 65}, "key_id"),
        ({"key_id": "a\nb"}, "key_id"),
    ],
)
def test_a_history_that_no_gateway_makes_is_refused_by_pool_and_column(spoilt: dict[str, object], fault: str) -> None:
    found = history_fault(replace(GOOD, **spoilt))
    assert found.startswith(f"history of pool pd of us-1: {fault}")


def test_the_largest_history_fits_into_128_kib() -> None:
    largest = history_of(*[LENGTH_MAX] * ROWS_MAX, keys=[PROMPT_KEY_MAX] * ROWS_MAX, added=(1 << 63) - 1)
    assert history_fault(largest) == ""
    assert codec.said_by_gateway(largest).ByteSize() <= 128 * 1024


def test_only_the_newest_requests_travel() -> None:
    many = history_of(*range(1, ROWS_MAX + 3))
    assert len(many) == ROWS_MAX
    assert many.rows(KEY_ID)[0][2] == 3
    assert many.added == ROWS_MAX + 2


def test_what_may_travel_is_what_predictors_take() -> None:
    assert (PROMPT_KEY_MAX, LENGTH_MAX) == (KEY_MAX, TOKENS_MAX)
